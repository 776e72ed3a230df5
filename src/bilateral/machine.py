"""How a run uses the machine it is on, as a typed value; no torch."""

from typing import Annotated, Literal

from pydantic import Field

from bilateral.config import Positive, Settings

Switch = Literal["auto", "on", "off"]


class Machine(Settings):
    """How a run uses the machine: it decides speed and memory, not what is learnt.

    So it is not part of a `Run`: a run may be resumed with other settings, on another machine.
    """

    compile: Switch = Field(
        "auto", description="torch.compile for the attack and the update; auto: on a GPU"
    )
    graphs: Switch = Field(
        "auto", description="replay a whole step as one CUDA graph; auto: with a single GPU"
    )
    channels_last: Switch = Field(
        "auto", description="the memory format of convolutions; auto: on a GPU, or with bfloat16"
    )
    fused: Switch = Field("auto", description="the fused optimiser; auto: on a GPU")
    accumulate: Positive = Field(
        1, description="parts in which a step's batch is computed, to save memory"
    )
    workers: Annotated[int, Field(ge=0)] | None = Field(
        None, description="processes that decode photographs; none: one per core"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events to the run folder")
