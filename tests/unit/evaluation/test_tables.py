"""Tables: the format of numbers, and the whole text of a small table in four formats."""

import math

import pandas as pd
import pytest

from metapt.evaluation.tables import NOTHING, mean_and_error, write_blocks

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


def test_whole_text(tmp_path):
    write_blocks({"Rotation, 100% of it": TABLE}, tmp_path / "table.v1", TABLE)
    texts = {path.name.removeprefix("table.v1."): path.read_bytes().decode() for path in tmp_path.iterdir()}
    assert texts == {"md": MARKDOWN, "tex": LATEX, "html": HTML, "csv": CSV}


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
def test_digits(mean, error, text):
    assert mean_and_error(mean, error) == text


def test_blocks_stand_below_one_another(tmp_path):
    numbers = pd.DataFrame({"mean": [0.1 + 0.2]})
    write_blocks({"First": TABLE, "Second": TABLE[["arm"]]}, tmp_path / "table", numbers)
    assert (tmp_path / "table.csv").read_text() == "mean\n0.30000000000000004\n"
    markdown, latex = ((tmp_path / f"table.{ending}").read_text() for ending in ("md", "tex"))
    assert markdown.startswith("First\n\n| arm ")
    assert "|\n\nSecond\n\n| arm    |\n" in markdown
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 2
