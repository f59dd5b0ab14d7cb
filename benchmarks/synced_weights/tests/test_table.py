"""The table of weights in the docs."""

from weight_sync import side_by_side


def test_sizes_stand_side_by_side() -> None:
    small = [
        ["memcpy", "67", "0.005", "13.40", "2.47", ""],
        ["1 → 1", "67", "0.045", "1.49", "0.26", "0"],
    ]
    large = [["memcpy", "537", "0.031", "17.3", "3.04", ""], ["1 → 1", "537", "0.3", "1.7", "0.30", "51"]]
    assert side_by_side({64: small, 512: large}) == [
        "| | 67 MB: s | of loopback | private MB | 537 MB: s | of loopback | private MB |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| memcpy | 0.005 | 2.47 |  | 0.031 | 3.04 |  |",
        "| 1 → 1 | 0.045 | 0.26 | 0 | 0.3 | 0.30 | 51 |",
    ]
