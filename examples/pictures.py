"""Draw the pictures of docs/examples.md: python examples/pictures.py docs/examples (needs the extra `workflow`)."""

import runpy
import sys
from pathlib import Path

import torch

from metapt.evaluation.figures import MARKERS, QUIET, colour, panels, style

EXAMPLES = Path(__file__).parent
SEEDS = range(20, 30)  # of the augmentation policy, which was designed with seeds below 20


def run(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def bars(values, groups, start, xlabel, ylabel):
    """Return a picture of learned values, each in the colour of its group, and of the value at the start."""
    figure, (axis,) = panels(1, width=6)
    for number, group in enumerate(dict.fromkeys(groups)):
        places = [place for place, other in enumerate(groups) if other == group]
        axis.bar(places, [values[place] for place in places], color=colour(number), label=group)
    axis.axhline(start, color=QUIET, linestyle="--", label="start")
    axis.set(xlabel=xlabel, ylabel=ylabel, xticks=range(len(values)))
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def noise_levels():
    noise = torch.sigmoid(run("noise_levels")["loop"].meta["noise"]).tolist()
    groups = ["useful in FT"] * 4 + ["useless"] * 4
    return bars(noise, groups, 0.5, "feature", "learned noise (share of variance)")


def class_weights():
    groups = ["right labels"] * 5 + ["random labels"] * 5
    return bars(run("class_weights")["main"]().tolist(), groups, 1, "class", "learned weight (mean 1)")


def graph_task_weights():
    groups = ["properties of the graph"] * 3 + ["noise"] * 3
    return bars(run("graph_task_weights")["main"]().tolist(), groups, 1, "task", "learned weight (mean 1)")


def augmentation_policy():
    example = run("augmentation_policy")
    runs = [example["main"](seed) for seed in SEEDS]
    figure, (left, right) = panels(2)
    for place, (name, start) in enumerate(example["START"].items()):
        left.plot([place] * len(runs), [learned[name] for learned, _ in runs], "o", alpha=0.5, color=colour(place))
        left.plot(place, start, "_", color=QUIET, markersize=22, label="start" if place == 0 else None)
    left.set(
        xticks=range(4), xticklabels=example["START"], ylabel="learned strength", ylim=(-0.03, 1.03), xlim=(-0.5, 3.5)
    )
    left.legend()
    right.plot([50, 100], [50, 100], "--", color=QUIET, label="no gain")
    right.plot(*zip(*(found for _, found in runs), strict=True), "o", alpha=0.5, color=colour(0), label="one seed")
    lowest = min(found[0] for _, found in runs) - 2
    right.set(xlim=(lowest, 101), ylim=(lowest, 101))
    right.set(xlabel="accuracy with the first strengths (%)", ylabel="with learned strengths (%)")
    right.legend(loc="lower right")
    return figure


def same_gradient():
    found = run("same_gradient_implicit")["main"]() | run("same_gradient_unrolled")["main"]()
    methods = {"neumann": "Neumann\nseries", "cg": "conjugate\ngradients", "unroll": "unrolled\nsteps"}
    figure, (axis,) = panels(1, width=6)
    for number, library in enumerate(("textbook", "betty", "torchopt", "higher")):
        points = [(list(methods).index(method), value) for (method, name), value in found.items() if name == library]
        places, values = zip(
            *((place + 0.12 * (number - 1.5), max(value, 1e-17)) for place, value in points), strict=True
        )
        axis.plot(places, values, MARKERS[number], color=colour(number), label=library)
    axis.axhline(1, color=QUIET, linestyle="--", label="as large as the hypergradient")
    axis.set(yscale="log", ylim=(1e-18, 1e3), ylabel="relative difference to metapt")
    axis.set(xticks=range(3), xticklabels=methods.values(), xlim=(-0.5, 2.5))
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (noise_levels, class_weights, graph_task_weights, augmentation_policy, same_gradient):
        with style():
            picture().savefig(folder / f"{picture.__name__}.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
