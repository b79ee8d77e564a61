"""Raw data from public sources or generated, and prepared data."""

PUBLIC = sorted({job.config["source"]["name"] for job in PLAN.jobs.values() if job.stage == "download"})

DOWNLOAD = Asked("download")


# A job for each file: when one fails, the files of the others are kept.
rule download:
    output:
        file=f"{RAW}/{{source}}/{{file}}",
    log:
        run=f"{RAW}/{{source}}/{{file}}.run.json",
        text=f"{RAW}/{{source}}/{{file}}.log.txt",
    wildcard_constraints:
        source="|".join(map(re.escape, PUBLIC)) or "(?!)",
        file="[^/]+",
    conda:
        "../envs/metapt.yaml"
    threads: DOWNLOAD.cores
    resources:
        mem_mb=DOWNLOAD.mem_mb,
        runtime=DOWNLOAD.minutes,
        gpu=0,
    params:
        job=DOWNLOAD.described,
        config=DOWNLOAD.source,
        code=DOWNLOAD.code,
    script:
        "../scripts/run_stage.py"


# The folder of each rule's outputs, and their files.
MADE = {}
for _domain in DOMAINS:
    for _source, _files in domain(_domain).simulated.items():
        MADE[f"simulate_{_domain}_{_source}"] = f"{RAW}/{_domain}-{_source}", {file: file for file in _files}
    MADE[f"prepare_{_domain}"] = f"{RESULTS}/{_domain}/data/{{source}}", domain(_domain).prepared

for _rule, (_folder, _files) in MADE.items():
    _asked = Asked(_rule)

    rule:
        name:
            _rule
        input:
            unpack(_asked.inputs),
        output:
            **{name: f"{_folder}/{file}" for name, file in _files.items()},
        log:
            run=f"{_folder}/run.json",
            text=f"{_folder}/log.txt",
        conda:
            "../envs/metapt.yaml"
        threads: _asked.cores
        resources:
            mem_mb=_asked.mem_mb,
            runtime=_asked.minutes,
            gpu=0,
        params:
            job=_asked.described,
            config=_asked.config,
            code=_asked.code,
        script:
            "../scripts/run_stage.py"
