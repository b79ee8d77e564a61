"""Jobs that train. Several jobs at a time finish earlier than one job with several threads."""

TABLES = {"run": "run.json", "metrics": "metrics.csv", "series": "series.csv"}

# The folder of each rule's outputs below that of the domain, and their files.
RUNS = {
    "pretrain": ("pretrain/{run}/seed{seed}", TABLES | {"pretrained": "pretrained.pt"}),
    "finetune": ("finetune/{run}", TABLES),
    "study": ("{experiment}/{study}", TABLES),
}

for _rule, (_place, _files) in RUNS.items():
    _asked, _folder = Asked(_rule), f"{RESULTS}/{{domain}}/{_place}"

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
            mem_mb=_asked.mem_mb,
            runtime=_asked.minutes,
            gpu=int(CONFIG.require_gpu),
        params:
            job=_asked.described,
            config=_asked.config,
            code=_asked.code,
        script:
            "../scripts/run_stage.py"
