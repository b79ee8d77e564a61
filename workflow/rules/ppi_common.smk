"""The functions that rules of the PPI domain ask for their files, parameters and resources."""

import json

from metapt.domains.ppi import config as ppi_config
from metapt.domains.ppi import needs as ppi_needs
from metapt.domains.ppi.data import sources as ppi_sources

PPI = CONFIG.ppi
# About as many as there are, in each source, for the resources.
PPI_GRAPHS = {"simulated": 1500, "string": 10000 * len(PPI.string.species), "hu2020": 88000}[PPI.source] if PPI else 0


def string_source(wildcards):
    """The entry of sources.yaml for one of STRING's files."""
    text = json.dumps(SOURCES["string-{version}"])
    source = json.loads(text.replace("{version}", wildcards.version).replace("{taxon}", wildcards.taxon))
    name = f"{wildcards.taxon}.protein.{wildcards.kind}.v{wildcards.version}.txt.gz"
    return source | {"files": {name: source["files"][name]}}


def ppi_section():
    if PPI is None:
        raise WorkflowError("ppi is not in the config: add a section `ppi` with an experiment, or name a config that has it.")
    return PPI


def ppi_arm(wildcards, setting_of):
    """The settings of a run's arm; `setting_of` (arm, setting) says in which setting its runs serve another one."""
    arms = ppi_section().arms
    if wildcards.arm not in arms:
        raise WorkflowError(f"ppi has no arm {wildcards.arm!r} in the config; it has {', '.join(arms)}.")
    arm = arms[wildcards.arm]
    legal = [setting for setting in ppi_needs.SETTINGS if setting_of(arm, setting) == setting]
    if wildcards.setting not in legal:
        raise WorkflowError(
            f"the arm {wildcards.arm!r} has no run in the setting {wildcards.setting!r}; legal: {', '.join(legal)}."
        )
    return arm


def ppi_raw(wildcards):
    """The raw files of the source in the config, whose prepared form is asked for."""
    if wildcards.source != ppi_section().source:
        raise WorkflowError(f"ppi.source is {PPI.source!r} in the config, so that {wildcards.source!r} can't be prepared.")
    return {name: f"{RAW}/{ppi_sources.folder(PPI)}/{name}" for name in ppi_sources.names(PPI)}


def ppi_prepare_config(wildcards):
    string = None if ppi_section().source == "hu2020" else plain(ppi_sources.string_of(PPI))
    return plain({"domain": "ppi", "source": PPI.source, "string": string, "test_species": PPI.test_species})


def ppi_data(*names):
    """Prepared files."""
    files = {"graphs": "graphs.npz", "tasks": "tasks.csv"}
    return {name: f"{RESULTS}/ppi/data/{ppi_section().source}/{files[name]}" for name in names}


def ppi_pretrained(arm, setting, seed):
    return f"{RESULTS}/ppi/pretrain/{arm}/{setting}/seed{seed}/pretrained.pt"


def ppi_pretrain_input(wildcards):
    source = ppi_config.weights_of(ppi_arm(wildcards, ppi_needs.pretrain_setting))
    weights = {} if source is None else {"weights": ppi_pretrained(source, wildcards.setting, wildcards.seed)}
    return ppi_data("graphs", "tasks") | weights


def ppi_pretrain_config(wildcards):
    arm = ppi_arm(wildcards, ppi_needs.pretrain_setting)
    return plain(
        {
            "domain": "ppi",
            "arm": wildcards.arm,
            "arm_settings": plain(arm),
            "setting": wildcards.setting,
            "seed": int(wildcards.seed),
            "network": plain(PPI.network),
            "pretrain": {} if isinstance(arm, ppi_config.NoPretraining) else plain(PPI.pretrain),
            "test_species": PPI.test_species,
            "source": PPI.source,
            "checkpoint": f"{RESULTS}/.resume/ppi/pretrain/{wildcards.arm}-{wildcards.setting}-seed{wildcards.seed}.pt",
        }
    )


def ppi_finetune_input(wildcards):
    ppi_arm(wildcards, ppi_needs.finetune_setting)
    runs = ppi_needs.encoders(PPI, ppi_needs.FinetuneKey(wildcards.arm, wildcards.setting))
    return ppi_data("graphs") | {f"seed{run.seed}": ppi_pretrained(*run) for run in runs}


def ppi_finetune_config(wildcards):
    arm = ppi_arm(wildcards, ppi_needs.finetune_setting)
    return plain(
        {
            "domain": "ppi",
            "arm": wildcards.arm,
            "method": arm.method,
            "setting": wildcards.setting,
            "pretrain_seeds": PPI.pretrain_seeds,
            "finetune_seeds": PPI.finetune_seeds,
            "evaluations": PPI.evaluations,
            "network": plain(PPI.network),
            "finetune": plain(PPI.finetune),
            "test_species": PPI.test_species,
            "checkpoint": f"{RESULTS}/.resume/ppi/finetune/{wildcards.arm}-{wildcards.setting}.pt",
        }
    )


def ppi_cka_input(wildcards):
    section("ppi_representations")
    runs = ppi_needs.needs(PPI, "representations").pretrain
    return ppi_data("graphs") | {f"pretrained/{run.arm}/{run.seed}": ppi_pretrained(*run) for run in runs}


def ppi_cka_config(wildcards):
    study = section("ppi_representations")
    return plain(
        {
            "domain": "ppi",
            "experiment": "representations",
            "arms": study.arms,
            "seeds": list(range(PPI.pretrain_seeds)),
            "graphs": study.graphs,
            "network": plain(PPI.network),
            "test_species": PPI.test_species,
        }
    )


def ppi_summarise_input(wildcards):
    section(f"ppi_{wildcards.experiment}")
    needed = ppi_needs.needs(PPI, wildcards.experiment)
    files = ppi_data("tasks") if wildcards.experiment in ("learned_weights", "negative_transfer") else {}
    for run in needed.pretrain:
        folder = f"{RESULTS}/ppi/pretrain/{run.arm}/{run.setting}/seed{run.seed}"
        files |= {f"{run.name}/metrics": f"{folder}/metrics.csv", f"{run.name}/series": f"{folder}/series.csv"}
        files[f"{run.name}/run"] = f"{folder}/run.json"
    for run in needed.finetune:
        folder = f"{RESULTS}/ppi/finetune/{run.arm}/{run.setting}"
        files[f"{run.name}/metrics"] = f"{folder}/metrics.csv"
        if wildcards.experiment == "negative_transfer":  # single tasks
            files[f"{run.name}/series"] = f"{folder}/series.csv"
    return files | {f"study/{study}/metrics": f"{RESULTS}/ppi/{study}/cka.csv" for study in needed.study}


def ppi_summarise_config(wildcards):
    """The domain's section without other experiments (but the summary's settings) and without arms that this one doesn't name."""
    section(f"ppi_{wildcards.experiment}")
    settings = plain(PPI)
    kept = [wildcards.experiment]
    if wildcards.experiment == "summary":
        kept += [experiment for experiment in ("half_data", "held_out_tasks") if settings[experiment] is not None]
    named = {arm for experiment in kept for arm in ppi_needs.arms_and_sources(PPI, experiment)}
    settings = {key: value for key, value in settings.items() if key in kept or key not in ppi_needs.EXPERIMENTS}
    return plain(
        {
            "domain": "ppi",
            "experiment": wildcards.experiment,
            "settings": settings | {"arms": {name: arm for name, arm in settings["arms"].items() if name in named}},
        }
    )


def ppi_prepare_mem_mb(wildcards, attempt):
    """The archive's pickle is read whole; of STRING's species, one at a time."""
    return attempt * (12000 if wildcards.source == "hu2020" else 3000 + PPI_GRAPHS // 20)


def ppi_mem_mb(batch, attempt):
    """The imports take 500 MB, 50 prepared graphs 1 MB, what a graph of a minibatch keeps for its derivatives 6 MB at full size."""
    return int(attempt * (1500 + PPI_GRAPHS / 50 + 12 * batch * ppi_size()))


def ppi_size():
    """Work and memory of the network, in units of the paper's."""
    return ppi_section().network.layers * PPI.network.width / (5 * 300)


def ppi_minutes(graphs, attempt):
    """For a job that takes so many graphs through the network and back: a core takes 190 of them in a second at full size, a GPU
    ten times as many."""
    return int(attempt * (60 + graphs * ppi_size() / (60 * 190 * (10 if CONFIG.require_gpu else 1))))


def ppi_update_graphs(arm):
    """FT graphs of a meta-update, at most."""
    if not isinstance(arm, ppi_config.Meta):
        return 0
    return min(PPI_GRAPHS, (arm.batch_size or PPI_GRAPHS) * (arm.folds or 2))


def ppi_pretrain_mem_mb(wildcards, attempt):
    arm = ppi_arm(wildcards, ppi_needs.pretrain_setting)
    pretrain = getattr(arm, "hypergradient_batch", None) or PPI.pretrain.batch_size
    return ppi_mem_mb(max(pretrain, ppi_update_graphs(arm)), attempt)


def ppi_pretrain_runtime(wildcards, attempt):
    """Minutes; meta-updates take as long as PT steps, and their FT graphs more where they are many."""
    arm = ppi_arm(wildcards, ppi_needs.pretrain_setting)
    graphs = PPI.pretrain.epochs * PPI_GRAPHS
    updates = graphs / (PPI.pretrain.batch_size * getattr(arm, "pretrain_steps", 1))
    return ppi_minutes(2 * graphs + updates * ppi_update_graphs(arm), attempt)


def ppi_finetune_mem_mb(wildcards, attempt):
    return ppi_mem_mb(ppi_section().finetune.batch_size, attempt)


def ppi_finetune_runtime(wildcards, attempt):
    """Minutes; the first FT seed tries all learning rates, and linear evaluation takes each graph through the network once."""
    runs = ppi_section().pretrain_seeds * (PPI.finetune_seeds - 1 + len(PPI.finetune.lrs))
    epochs = PPI.finetune.epochs if "full_transfer" in PPI.evaluations else 0
    return ppi_minutes((runs * epochs + PPI.pretrain_seeds) * PPI_GRAPHS, attempt)
