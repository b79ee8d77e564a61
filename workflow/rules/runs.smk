"""Jobs that train. Several jobs at a time finish earlier than one job with several threads."""

TABLES = {"run": "run.json", "metrics": "metrics.csv", "series": "series.csv"}

# The folder of each rule's outputs below that of the domain, and their files.
RUNS = {
    "pretrain": ("pretrain/{run}/seed{seed}", TABLES | {"pretrained": "pretrained.pt"}),
    "finetune": ("finetune/{run}", TABLES),
    "study": ("{experiment}/{study}", TABLES),
}

for _rule, (_place, _files) in RUNS.items():
    _asked, _folder = Asked(_rule, gpu=int(CONFIG.require_gpu)), f"{RESULTS}/{{domain}}/{_place}"

    rule:
        name:
            _rule
        input:
            unpack(_asked.inputs),
        output:
            **{name: f"{_folder}/{file}" for name, file in _files.items()},
        log:
            f"{_folder}/log.txt",
        conda:
            "../envs/metapt.yaml"
        threads: _asked.cores
        resources:
            **_asked.resources,
        params:
            **_asked.params,
        script:
            "../scripts/run_stage.py"
