"""python -m bilateral"""

from bilateral.cli import program

if __name__ == "__main__":
    raise SystemExit(program())
