"""What a service keeps on the disk is closed to other users."""

import os
import stat
from pathlib import Path

import pytest
from muster.process import make_folder_private


def test_a_folder_is_closed_to_others_also_where_it_was_open(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "inner", tmp_path / "open"):
        if folder.name == "open":
            folder.mkdir(mode=0o755)
        make_folder_private(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_only_an_open_folder_of_muster_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "shared").touch()
    with pytest.raises(OSError, match=f"{tmp_path} is open to others .*choose a folder in it"):
        make_folder_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    (tmp_path / "lock").touch()
    make_folder_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_folder_that_others_share_is_not_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(OSError, match=f"{tmp_path} is shared with others: choose a folder in it"):
        make_folder_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_stays_as_it_is(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o755)
    make_folder_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
