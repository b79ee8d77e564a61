"""The tables of what PT gains and loses: the centre nodes right or as released, FT tasks that lose, and permuted PT tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from metapt.domains.ppi.labels import SETTINGS, label, task_names
from metapt.domains.ppi.results import AUROC, Results, auroc_cells
from metapt.domains.ppi.settings import FULL_ACCESS, PERMUTED_TASKS, RELEASED_CENTRE
from metapt.domains.ppi.tables import DIFFERENCES, difference_text, differences, numbers_of, ours, plain_arm
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.twostage.seeded import difference_columns, seed_means

FROM_SCRATCH = "full_transfer"
"""How an encoder without PT is put to use: linear evaluation of a random one would be a straw man."""


def centre_tables(results: Results) -> Tables:
    """AUROC with the centre nodes right and as the released code batches them, and what arms gain over plain PT under both."""
    cells = auroc_cells(results, [FULL_ACCESS, RELEASED_CENTRE])
    changes = differences(results, [((arm, RELEASED_CENTRE), (arm, FULL_ACCESS)) for arm in results.arms])
    gained = gains(results)
    shown = []
    for (evaluation, arm), part in cells.groupby(["evaluation", "arm"], sort=False):
        row: dict[str, object] = {"evaluation": EVALUATIONS[str(evaluation)], "arm": label(str(arm))}
        for cell in part.to_dict("records"):
            row |= {"PT seeds": cell["seeds"], _CENTRES[cell["setting"]]: ours(cell)}
        change = changes[(changes["evaluation"] == evaluation) & (changes["arm"] == arm)] if len(changes) else changes
        for difference in change.to_dict("records"):
            row["released minus right"] = difference_text(difference)
        shown.append(row)
    blocks = {
        f"{AUROC} with the centre nodes of PT batches right and as the released code batches them. Mean ± standard error over "
        f"all FT runs; in brackets over PT seeds. Differences {DIFFERENCES}": pd.DataFrame(shown).fillna("")
    }
    if len(gained):
        blocks["Gain over plain PT (as above), and how much of it stands with the right centre"] = _wide_gains(gained)
    return Tables(blocks, numbers_of(results, [cells, changes, gained]))


_CENTRES = {FULL_ACCESS: "right", RELEASED_CENTRE: "released"}


def gains(results: Results) -> pd.DataFrame:
    """The gain of each arm over plain PT in each setting, and that with the right centre minus that under released batching.

    Columns: evaluation, arm, minus, gain (right, released, right minus released), and those of `difference_columns`.
    """
    plain = plain_arm(results)
    rows = []
    for evaluation in results.config.evaluations:
        for arm in results.arms:
            if plain is None or arm == plain:
                continue
            words = {"evaluation": evaluation, "arm": arm, "minus": plain}
            found = {}
            for setting, name in _CENTRES.items():
                try:
                    a, b = results.runs(arm, setting, evaluation), results.runs(plain, setting, evaluation)
                except NotMeasuredError:
                    continue
                rows.append(words | {"gain": name} | difference_columns(a, b))
                found[name] = a - b
            if len(found) == 2:
                rows.append(words | {"gain": "right minus released"} | difference_columns(found["right"], found["released"]))
    return pd.DataFrame(rows)


def _wide_gains(gained: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (evaluation, arm, minus), part in gained.groupby(["evaluation", "arm", "minus"], sort=False):
        found = {row["gain"]: row for row in part.to_dict("records")}
        texts = {name: difference_text(row) for name, row in found.items()}
        if {"right", "released"} <= set(found):
            clear = found["released"]["low"] > 0
            share = f"{100 * found['right']['mean'] / found['released']['mean']:.0f} %"
            texts["stands"] = share if clear else "no clear gain under released batching"
        name = f"{label(str(arm))} minus {label(str(minus))}"
        rows.append({"evaluation": EVALUATIONS[str(evaluation)], "gain": name, **texts})
    return pd.DataFrame(rows).fillna("")


def scratch(results: Results) -> tuple[str, str] | None:
    """The arm without PT and the evaluation that others are held against; None where it was not run."""
    arm = next((arm for arm in results.arms if results.config.arms[arm].method == "no_pt"), None)
    evaluations = results.config.evaluations
    return None if arm is None else (arm, FROM_SCRATCH if FROM_SCRATCH in evaluations else evaluations[0])


def transfer(results: Results, arm: str, evaluation: str) -> pd.DataFrame:
    """Each FT task (index) without PT and with: the mean test AUROC (%) over all FT runs, and the change between them.

    Columns: without, with, change, low, high (95% t interval over PT seeds). What a run could not score is NaN.
    Raises NotMeasuredError.
    """
    without, after = _without_and_with(results, arm, evaluation)
    changes = _by_seed(after) - _by_seed(without)
    found = [estimate_mean(row) for row in changes.to_numpy(dtype=float)]
    return pd.DataFrame(
        {
            "without": without.mean(axis=1, skipna=False),
            "with": after.mean(axis=1, skipna=False),
            "change": [e.mean for e in found],
            "low": [e.low for e in found],
            "high": [e.high for e in found],
        },
        index=changes.index,
    )


def losing(results: Results, arm: str, evaluation: str) -> pd.Series[float]:
    """Share (%) of the FT tasks that have lower AUROC than without PT, by PT seed, each the mean of its FT runs.

    Tasks that no run could score (test graphs of one class) do not count; one that only some runs could not score makes the
    share NaN. Raises NotMeasuredError.
    """
    without, after = _without_and_with(results, arm, evaluation)
    scored = ~(without.isna().all(axis=1) | after.isna().all(axis=1))
    changes = (_by_seed(after) - _by_seed(without))[scored]
    return (100 * (changes < 0).mean()).where(changes.notna().all() & (len(changes) > 0))


def _without_and_with(results: Results, arm: str, evaluation: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    base = scratch(results)
    if base is None:
        raise NotMeasuredError("No arm without PT was run.")
    return results.task_aurocs(*base), results.task_aurocs(arm, evaluation)


def _by_seed(aurocs: pd.DataFrame) -> pd.DataFrame:
    """Means over the FT runs of each PT seed [tasks, PT seeds]."""
    return pd.DataFrame({task: seed_means(row) for task, row in aurocs.iterrows()}).T


def transfer_tables(results: Results) -> Tables:
    """For each arm and evaluation how many FT tasks lose, and which changes least to the good."""
    base, names = scratch(results), task_names(results.tasks, "fine", width=32)
    shown, parts = [], []
    for arm in results.arms:
        for evaluation in results.config.evaluations:
            if base is None or arm == base[0]:
                continue
            try:
                table, shares = transfer(results, arm, evaluation), losing(results, arm, evaluation)
            except NotMeasuredError:
                continue
            scored, e = table.dropna(subset="change"), estimate_mean(shares.to_numpy(dtype=float))
            row: dict[str, object] = {"arm": label(arm), "evaluation": EVALUATIONS[evaluation], "FT tasks": len(table)}
            row |= {
                "lose": int((scored["change"] < 0).sum()),
                "surely": int((scored["high"] < 0).sum()) if e.n > 1 else "",
                "not scored": len(table) - len(scored),
                "share that loses (%)": mean_and_error(e.mean, e.standard_error),
            }
            if len(scored):
                worst = int(scored.index[int(scored["change"].argmin())])
                row["median change"] = f"{scored['change'].median():+.1f}"
                row["least change"] = f"{scored['change'].min():+.1f}, {names.get(worst, f'task {worst}')}"
            shown.append(row)
            parts.append(table.reset_index(names="task").assign(arm=arm, evaluation=evaluation))
    against = "" if base is None else f" than {label(base[0])}, {EVALUATIONS[base[1]]}"
    caption = (
        f"FT tasks with lower test AUROC{against}. Lose: by the mean over all FT runs; surely: the 95% t interval over PT seeds "
        "lies below 0. Not scored: test graphs of one class, or a run that diverged. Share that loses: mean ± standard error "
        "over PT seeds, each the mean of its FT runs. Changes in percentage points"
    )
    nothing = pd.DataFrame({"arm": list(results.arms)})
    return Tables({caption: pd.DataFrame(shown) if shown else nothing}, numbers_of(results, parts or [nothing]))


def permuted_effects(results: Results) -> pd.DataFrame:
    """What permuted PT tasks do to each arm, what arms gain over plain PT there, and what part of the tasks does.

    Columns as those of `differences`.
    """
    section, plain = results.section, plain_arm(results)
    pairs = [((arm, PERMUTED_TASKS), (arm, FULL_ACCESS)) for arm in section.arms]
    if plain is not None:
        pairs += [((arm, PERMUTED_TASKS), (plain, PERMUTED_TASKS)) for arm in section.arms if arm != plain]
        pairs += [((arm, FULL_ACCESS), (plain, FULL_ACCESS)) for arm in section.quarters]
    pairs += [((section.quarters[0], FULL_ACCESS), (other, FULL_ACCESS)) for other in section.quarters[1:]]
    return differences(results, pairs)


def permuted_blocks(results: Results) -> tuple[dict[str, pd.DataFrame], list[pd.DataFrame]]:
    """FT with and without permuted PT tasks, and after PT on part of the tasks: blocks, and their numbers."""
    cells, effects = auroc_cells(results, [FULL_ACCESS, PERMUTED_TASKS]), permuted_effects(results)
    shown = []
    for (evaluation, arm), part in cells.groupby(["evaluation", "arm"], sort=False):
        row: dict[str, object] = {"evaluation": EVALUATIONS[str(evaluation)], "arm": label(str(arm))}
        for cell in part.to_dict("records"):
            row |= {"PT seeds": cell["seeds"], _INTACT[cell["setting"]]: ours(cell)}
        shown.append(row)
    blocks = {
        f"{AUROC}. Mean ± standard error over all FT runs; in brackets over PT seeds. The quarters are the PT tasks of highest "
        "and of lowest learned weight": pd.DataFrame(shown).fillna("")
    }
    rows: dict[str, dict[str, object]] = {}
    for effect in effects.to_dict("records"):
        row = rows.setdefault(name := _difference_name(effect), {"difference": name, "PT seeds": effect["seeds"]})
        row[EVALUATIONS[effect["evaluation"]]] = difference_text(effect)
    if rows:
        blocks[f"Differences {DIFFERENCES}"] = pd.DataFrame(list(rows.values())).fillna("")
    return blocks, [cells, effects]


_INTACT = {FULL_ACCESS: "all PT tasks intact", PERMUTED_TASKS: SETTINGS[PERMUTED_TASKS]}


def _difference_name(effect: Mapping[Any, str]) -> str:
    arm, minus = label(effect["arm"]), label(effect["minus"])
    if arm == minus:
        return f"{arm}: permuted minus intact"
    return f"{arm} minus {minus}" + (", permuted" if effect["setting"] == PERMUTED_TASKS else "")
