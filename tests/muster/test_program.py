"""What `muster.program.loading` leaves as it was."""

import gc
from importlib import import_module

import pytest
from muster.program import loading


def test_loaded_modules_are_out_of_the_collectors_way() -> None:
    gc.collect()  # before what other tests have left is set aside
    before = gc.get_freeze_count()
    with loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def test_rich_is_there_again_even_after_a_module_that_can_not_be_loaded() -> None:
    gc.collect()
    with pytest.raises(ImportError, match="rich"), loading():
        import_module("rich")
    assert gc.isenabled()
    assert import_module("rich")
