"""The evaluation of a target, attack by attack and batch by batch, saved after every batch.

With several processes, each attacks its share of every batch; all of them hold all flags, and the
first one writes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bilateral.attacks.settings import AttackSettings
from bilateral.attacks.table import attack_members
from bilateral.budgets import fraction_text
from bilateral.data.device_images import DeviceImages
from bilateral.data.subsets import chosen_images, data_digest
from bilateral.errors import Interrupted
from bilateral.evaluation.attack_files import AttackFiles, broken_before, evaluations
from bilateral.evaluation.gallery import Gallery
from bilateral.evaluation.keeping import AdversarialImages
from bilateral.evaluation.robustness import (
    UNEVEN,
    Flags,
    add_flags,
    check_inputs,
    noise_keys,
    predictions,
    robust_flags,
    uncounted,
    uneven,
)
from bilateral.evaluation.search import Precision, prepare_search
from bilateral.evaluation.target import Target
from bilateral.processes import Processes
from bilateral.results import (
    AttackFile,
    AttackSummary,
    Evaluation,
    summarise,
    summarise_members,
)
from bilateral.runs import write_json
from bilateral.runtime import StopRequest, versions
from bilateral.tables import percent
from bilateral.weights import weights_digest

Shown = Callable[[str, int, int, float], None]
"""Progress: the attack, images done, images in total, robust accuracy so far."""

PATIENCE_SECONDS = 20.0
"""An attack on a batch may take minutes, but Slurm gives a job 30 s to stop (KillWait)."""


class Campaign:
    """One call of `evaluate`: the chosen images, and what is known about them so far."""

    def __init__(
        self,
        target: Target,
        epsilon: float,
        images: int | None,
        device: torch.device,
        batch_size: int | None = None,
        precision: Precision = "auto",
        compile: bool = False,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.numbers = chosen_images(target.split, images, target.data)
        self.target, self.epsilon, self.device = target, epsilon, device
        self.any_precision = precision == "auto"
        self.images = DeviceImages(target.split, device)
        self.labels = self.images.labels
        few = self.images_of(self.chosen()[:4])
        check_inputs(target.model, few, self.labels)
        self.batch_size = batch_size or (1000 if device.type == "cuda" else 250)
        self.search = prepare_search(target.model, few, precision, compile)
        self.digest = weights_digest(target.model)
        self.common: dict[str, Any] = {
            "epsilon": epsilon,
            "epsilon_text": fraction_text(epsilon),
            "data": target.data,
            "data_digest": data_digest(target.split),
            "code_digest": target.code_digest,
            "config_digest": target.config_digest,
            "search": self.search.precision,
            "weights_digest": self.digest,
            "versions": versions(device),
        }
        self.files = AttackFiles(target.folder, self.common)

    def chosen(self) -> Tensor:
        """The numbers of the chosen images, on the device."""
        return torch.from_numpy(self.numbers).to(self.device)

    def images_of(self, numbers: Tensor) -> Tensor:
        """Images in [0, 1] by their numbers."""
        return self.images.floats(numbers)

    def batches(self, numbers: np.ndarray) -> Iterator[Tensor]:
        """This process's share of each batch, on the device; that of the last may be empty.

        The next share is decoded in the background.
        """
        rank, world = self.processes.rank, self.processes.world
        size = self.batch_size * world
        parts = [
            torch.from_numpy(np.sort(numbers[start : start + size])[rank::world]).to(self.device)
            for start in range(0, len(numbers), size)
        ]
        for place, part in enumerate(parts):
            for expected in parts[place : place + 2]:
                self.images.expect(expected)
            yield part

    def attack(self, numbers: Tensor, settings: AttackSettings) -> Flags:
        """Attack these images as one batch."""
        return robust_flags(
            self.target.model,
            self.images_of(numbers),
            self.labels[numbers],
            settings,
            noise_keys(numbers),
            self.epsilon,
            self.search,
        )

    def attack_shared(
        self, part: Tensor, settings: AttackSettings, wanted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Flags, Tensor]:
        """Attack a batch; its image numbers, its flags, and the numbers of the flags' images.

        With several processes each attacks its share, and they exchange only the images at the
        places of a share that `wanted` selects.
        """
        shares: list[tuple[Tensor, Flags, Tensor]] = []
        if len(part):
            found, numbers = self.attack(part, settings), part.cpu()
            places = wanted(numbers)
            distances = None if found.distances is None else found.distances.cpu()
            images = found.images[places.to(self.device)].cpu()
            found = found._replace(
                robust=found.robust.cpu(),
                predictions=found.predictions.cpu(),
                images=images,
                distances=distances,
            )
            shares = [(numbers, found, numbers[places])]
        shares = [share for own in self.processes.gather(shares) for share in own]
        flags = joined_flags([found for _, found, _ in shares])
        shown, order = torch.cat([shown for _, _, shown in shares]).sort()
        flags = flags._replace(images=flags.images[order])
        return torch.cat([numbers for numbers, _, _ in shares]), flags, shown

    def clean_predictions(self) -> list[int]:
        """The classes predicted for the chosen images without an attack."""
        clean: dict[int, int] = {}
        for part in self.batches(self.numbers):
            own: list[int] = []
            if len(part):
                own = predictions(self.target.model, self.images_of(part)).tolist()
            for numbers, seen in self.processes.gather((part.tolist(), own)):
                clean |= dict(zip(numbers, seen, strict=True))
        return [clean[number] for number in self.numbers.tolist()]

    def run(
        self,
        name: str,
        stop: StopRequest,
        shown: Shown,
        gallery: Gallery,
        adversarial: AdversarialImages | None,
    ) -> AttackFile:
        """Attack the images that lack a flag, writing flags after every batch."""
        # All processes must start from the same flags: one reading for itself might already see
        # what the first has written. Other attacks' flags are no use if images are to be saved.
        known_by_first = None
        if self.processes.first:
            known_by_first = self.files.known(
                name, self.numbers, self.any_precision, from_others=adversarial is None
            )
            self.files.set_aside(known_by_first)
        file: AttackFile = self.processes.gather(known_by_first)[0]
        path = self.files.path(name)
        left = self.numbers
        gallery.begin(name, file.members)

        def wanted(numbers: Tensor) -> Tensor:
            """Which images of a share to keep: all if they are to be saved, else the gallery's."""
            everything = torch.arange(len(numbers))
            return everything if adversarial is not None else gallery.wanted(numbers)

        for member, settings in attack_members(name, self.epsilon).items():
            flags = file.members[member]
            known = dict(zip(flags.images, flags.robust, strict=True))
            if adversarial is not None:  # images that were not saved are attacked again
                to_show = set(left.tolist())
                known = {
                    number: flag
                    for number, flag in known.items()
                    if number not in to_show or adversarial.shows(number, flag, member)
                }
                flags.keep(known)
            # The gallery's images come first, so that it is complete after the first batch even
            # if the evaluation is interrupted.
            todo = np.array(
                sorted(
                    (number for number in left.tolist() if number not in known),
                    key=lambda number: number not in gallery.numbers,
                ),
                dtype=np.int64,
            )
            done = 0
            for part in self.batches(todo):
                numbers, found, shown_numbers = self.attack_shared(part, settings, wanted)
                add_flags(flags, numbers, found)
                file.compile()
                done += len(numbers)
                clean = self.images_of(shown_numbers.to(self.device))
                gallery.offer(name, member, shown_numbers, clean, found.images)
                if adversarial is not None:
                    adversarial.put(shown_numbers, found.images, member)
                if self.processes.first:
                    if adversarial is not None:
                        adversarial.write()
                    gallery.write()  # before the flags: images with flags are not attacked again
                    write_json(path, file.model_dump(by_alias=True))
                robust_so_far = sum(flags.robust) / len(flags.robust) * len(left)
                shown(
                    name if member == name else f"{name}: {member}",
                    done,
                    len(todo),
                    robust_so_far / len(self.numbers),
                )
                if asked := self.processes.largest(stop.number or 0)[0]:
                    raise Interrupted(asked)
            flag = dict(zip(flags.images, flags.robust, strict=True))
            left = np.array([number for number in left if flag[int(number)]], dtype=np.int64)
        file.compile()
        if self.processes.first:
            gallery.write()
            write_json(path, file.model_dump(by_alias=True))
        return file


def evaluate_target(
    target: Target,
    names: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    batch_size: int | None = None,
    shown: Shown = lambda *_: None,
    save_adversarial: bool = False,
    precision: Precision = "auto",
    compile: bool = False,
    processes: Processes | None = None,
    warnings: Sequence[str] = (),
) -> Evaluation:
    """Run the named attacks on images that lack flags and return this evaluation's entry.

    `warnings` are the guards', stored with the figures that they concern.
    """
    campaign = Campaign(target, epsilon, images, device, batch_size, precision, compile, processes)
    target.model.eval()
    clean = campaign.clean_predictions()
    # With several processes, one that quits on its own would keep the rest waiting.
    stop = StopRequest(PATIENCE_SECONDS if campaign.processes.world == 1 else None)
    summaries = {}
    with campaign.processes.writing_to(target.folder.path), stop.listening():
        gallery = Gallery(target, campaign.common)
        for name in names:
            adversarial = None
            if save_adversarial:
                path = target.folder.adversarial(name, campaign.common["epsilon_text"])
                adversarial = AdversarialImages.open(path, name, campaign.common)
            file = campaign.run(name, stop, shown, gallery, adversarial)
            summaries[name] = summarise_members(file.members, campaign.numbers.tolist())
            if campaign.processes.first and adversarial is not None:
                adversarial.finish()
        return _record(campaign, clean, summaries, warnings)


def _record(
    campaign: Campaign,
    clean: list[int],
    summaries: dict[str, AttackSummary],
    warnings: Sequence[str] = (),
) -> Evaluation:
    """Write this call's entry, whose attacks and worst case include those of earlier calls."""
    target, numbers = campaign.target, campaign.numbers.tolist()
    stored = evaluations(target.folder)

    def entry(attacks: dict[str, AttackSummary]) -> Evaluation:
        return summarise(
            classes=target.split.classes,
            labels=target.split.labels[numbers].tolist(),
            predictions=clean,
            attacks=attacks,
            **campaign.common,
        )

    if earlier := stored.find(entry(summaries)):
        for name in earlier.attacks.keys() - summaries.keys():
            found = [
                summarise_members(file.members, numbers)
                for file in campaign.files.found_before(name, campaign.numbers)
                if set(numbers) <= file.settled().keys()
            ]
            if found:  # of an attack that was edited, what broke most
                summaries[name] = min(found, key=lambda one: one.accuracy)
        summaries = {
            name: summaries[name] for name in earlier.attacks | summaries if name in summaries
        }
    result = entry(summaries)
    result.warnings = [
        *warnings,
        *uncounted(summaries, target.split.labels[numbers].tolist()),
        *broken_before(result, target.folder, numbers),
        *uneven(result, len(target.split.classes)),
        *_evened(target.split.labels, campaign.numbers),
    ]
    stored.put(result)
    if campaign.processes.first:
        write_json(target.folder.evaluation, stored.model_dump(by_alias=True))
    return result


def _evened(labels: np.ndarray, numbers: np.ndarray) -> list[str]:
    """A warning if a subset is balanced over the classes while the whole set is not."""
    classes = int(labels.max()) + 1
    of_all, of_chosen = (np.bincount(some, minlength=classes) for some in (labels, labels[numbers]))
    share = of_all.max() / len(labels)
    if share - of_chosen[of_all.argmax()] / len(numbers) <= UNEVEN:
        return []
    return [
        f"these {len(numbers):,} images are drawn evenly from the classes, but {percent(share)} % "
        f"of all {len(labels):,} are of one class: accuracy on all of them may lie outside the "
        "interval"
    ]


def joined_flags(shares: Sequence[Flags]) -> Flags:
    """The flags of a batch, joined from its shares, which were attacked at the same time."""
    distances = [share.distances for share in shares if share.distances is not None]
    return Flags(
        robust=torch.cat([share.robust for share in shares]),
        predictions=torch.cat([share.predictions for share in shares]),
        images=torch.cat([share.images for share in shares]),
        seconds=max(share.seconds for share in shares),
        forwards=sum(share.forwards for share in shares),
        backwards=sum(share.backwards for share in shares),
        distances=torch.cat(distances) if distances else None,
    )
