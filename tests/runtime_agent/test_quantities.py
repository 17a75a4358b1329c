"""Quantities as Kubernetes writes them."""

import pytest
from runtime_agent.domain.kubernetes.quantities import cpus, mebibytes


@pytest.mark.parametrize(
    ("text", "amount"),
    [("4", 4.0), ("250m", 0.25), ("1e3", 1000.0), ("0", 0.0), ("1500u", 0.0015)],
)
def test_cpus(text: str, amount: float) -> None:
    assert cpus(text) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("16265492Ki", 16265492 / 1024), ("16Gi", 16384.0), ("64Mi", 64.0), ("1048576", 1.0),
     ("1M", 10**6 / 2**20), ("128974848", 123.0), ("2Ti", 2.0 * 2**20), ("1k", 1000 / 2**20)],
)  # fmt: skip
def test_mebibytes(text: str, amount: float) -> None:
    assert mebibytes(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "Ki", "4Q", "four"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        cpus(text)
