"""Tables: the format of numbers, the text of a small table in four formats, and the paper's numbers beside ours."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metapt.evaluation import metrics
from metapt.evaluation.metrics import CELL, row
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import NOTHING, beside_paper, mean_and_error, ours_and_papers, paper_numbers, write_blocks

TABLE = pd.DataFrame(
    {
        "arm": ["meta", "K=0|1", "no_pt"],
        "ours": ["7.2 ± 1.5", "88.4 ± 0.3", None],
        "seconds": [1234.5678, math.nan, 0.1],
        "n": [10, 10, 1],
        "setting": ["10 runs", "& 5%", ""],
    }
)

MARKDOWN = f"""\
Rotation, 100% of it

| arm    |       ours | seconds |   n | setting |
| ------ | ---------: | ------: | --: | ------- |
| meta   |  7.2 ± 1.5 |    1235 |  10 | 10 runs |
| K=0\\|1 | 88.4 ± 0.3 |       {NOTHING} |  10 | & 5%    |
| no_pt  |          {NOTHING} |  0.1000 |   1 | {NOTHING}       |
"""

LATEX = r"""% needs \usepackage{booktabs}
\begin{table}
  \centering
  \caption{Rotation, 100\% of it}
  \begin{tabular}{lrrrl}
    \toprule
    arm & ours & seconds & n & setting \\
    \midrule
    meta & 7.2 $\pm$ 1.5 & 1235 & 10 & 10 runs \\
    K=0\textbar{}1 & 88.4 $\pm$ 0.3 & -- & 10 & \& 5\% \\
    no\_pt & -- & 0.1000 & 1 & -- \\
    \bottomrule
  \end{tabular}
\end{table}
"""

HTML = """\
<figure>
<figcaption>Rotation, 100% of it</figcaption>
<table>
<thead><tr><th>arm</th><th class="number">ours</th><th class="number">seconds</th><th class="number">n</th>\
<th>setting</th></tr></thead>
<tbody>
<tr><td>meta</td><td class="number">7.2 &#177; 1.5</td><td class="number">1235</td><td class="number">10</td>\
<td>10 runs</td></tr>
<tr><td>K=0|1</td><td class="number">88.4 &#177; 0.3</td><td class="number">&#8211;</td><td class="number">10</td>\
<td>&amp; 5%</td></tr>
<tr><td>no_pt</td><td class="number">&#8211;</td><td class="number">0.1000</td><td class="number">1</td>\
<td>&#8211;</td></tr>
</tbody>
</table>
</figure>
"""

CSV = """\
arm,ours,seconds,n,setting
meta,7.2 ± 1.5,1234.5678,10,10 runs
K=0|1,88.4 ± 0.3,,10,& 5%
no_pt,,0.1,1,
"""


def test_whole_text(tmp_path: Path) -> None:
    write_blocks({"Rotation, 100% of it": TABLE}, tmp_path / "table.v1", TABLE)
    texts = {path.name.removeprefix("table.v1."): path.read_bytes().decode() for path in tmp_path.iterdir()}
    assert texts == {"md": MARKDOWN, "tex": LATEX, "html": HTML, "csv": CSV}
    write_blocks({"First": TABLE, "Second": TABLE[["arm"]]}, tmp_path / "both", pd.DataFrame({"mean": [0.1 + 0.2]}))
    assert (tmp_path / "both.csv").read_text() == "mean\n0.30000000000000004\n"
    assert "|\n\nSecond\n\n| arm    |\n" in (tmp_path / "both.md").read_text()
    assert (tmp_path / "both.tex").read_text().count(r"\begin{table}") == 2


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (7.2345, 1.4962, "7.2 ± 1.5"),
        (78.64, 0.31, "78.6 ± 0.3"),
        (78.64, 0.0961, "78.64 ± 0.10"),
        (12345.0, 1500.0, "12300 ± 1500"),
        (7.234, 0.2, "7.2 ± 0.2"),
        (-0.01, 0.3, "0.0 ± 0.3"),
        (0.0, 0.0, "0.000 ± 0"),
        (5.0, 0.0, "5.000 ± 0"),
        (5.0, 4e-16, "5.000 ± 0"),
        (45.2999985, 8e-7, "45.30 ± 0"),
        (45.2999985, 8e-5, "45.30000 ± 0.00008"),
        (87.6, math.nan, "87.60"),
        (-123.456, math.nan, "-123.5"),
        (3.2e8, math.nan, "3.200e8"),
        (0.0, 3e-6, "(0 ± 3)e-6"),
        (0.0, 5e-324, "(0 ± 5)e-324"),
        (math.inf, math.nan, "inf"),
    ],
)
def test_digits(mean: float, error: float, text: str) -> None:
    assert mean_and_error(mean, error) == text


TEN = "10 initialisations in [45,135], target 90"


def test_a_number_stands_once_and_every_one_is_a_number() -> None:
    numbers = paper_numbers()
    assert len(numbers) > 100
    assert not numbers.duplicated(CELL).any()
    assert np.isfinite(numbers["paper_mean"]).all()


def test_ours_stand_beside_the_papers_numbers_of_the_same_names() -> None:
    rows = [
        row("mnist_rotation_mean", "meta", "absolute error of learned mean (degrees)", v, replicate=v, setting=TEN)
        for v in (3, 5)
    ]
    rows += [row("mnist_bptt", arm, "FT test accuracy (%)", 87.0) for arm in ("bptt", "meta", "meta-k5")]
    ratio, auroc = "ratio of mean weight clean/noisy", "mean test AUROC over 5 classes (%)"
    rows += [row("mnist_example_weighting", "meta", ratio, 240.0, setting="10 initialisations")]
    rows += [row("ecg_full_access", "simclr", auroc, 80.0, setting="ft_size=500", evaluation="full_transfer")]
    summary = summarise(metrics.validate(rows))
    joined = beside_paper(summary, paper_numbers())
    assert joined[summary.columns.tolist()].equals(summary)
    np.testing.assert_equal(joined["paper_mean"].tolist(), [7.2, 88.0, 87.6, np.nan, 100.0, 79.8])
    np.testing.assert_equal(joined["paper_standard_error"].tolist(), [1.5, np.nan, np.nan, np.nan, np.nan, 0.3])
    assert joined["paper_note"].tolist()[3:5] == ["", "lower bound: greater than 1e2"]
    shown = ours_and_papers(joined)
    assert shown["ours"].tolist()[:2] == ["4.0 ± 1.0", "87.00"]
    assert shown["paper"].tolist() == ["7.2 ± 1.5", "88", "87.6", NOTHING, "100", "79.8 ± 0.3"]
    one = ours_and_papers(joined[joined["experiment"] == "mnist_bptt"])
    assert one.columns.tolist() == ["arm", "metric", "n", "ours", "paper", "note"], "what is empty is left out"
