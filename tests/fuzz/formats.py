"""Every format of which a file may come from outside."""

from formats_data import DATA_FORMATS
from formats_runs import RUN_FORMATS
from fuzz_format import Format

FORMATS: dict[str, Format] = {form.name: form for form in [*DATA_FORMATS, *RUN_FORMATS]}
