"""Attacks on images inside an L-inf ball: goal, geometry and method in separate files.

ball (the feasible set), losses (what a step changes), targets (which class), gradient (the one
loop behind FGSM, PGD, MI-FGSM and the training adversary), table (what users can name; no torch).
"""
