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


for _domain in DOMAINS:
    for _source, _files in domain(_domain).simulated.items():
        _asked = Asked(f"simulate_{_domain}_{_source}")

        rule:
            name:
                f"simulate_{_domain}_{_source}"
            input:
                unpack(_asked.inputs),
            output:
                **{file: f"{RAW}/{_domain}-{_source}/{file}" for file in _files},
            log:
                run=f"{RAW}/{_domain}-{_source}/run.json",
                text=f"{RAW}/{_domain}-{_source}/log.txt",
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

    _asked = Asked(f"prepare_{_domain}")

    rule:
        name:
            f"prepare_{_domain}"
        input:
            unpack(_asked.inputs),
        output:
            **{name: f"{RESULTS}/{_domain}/data/{{source}}/{file}" for name, file in domain(_domain).prepared.items()},
        log:
            run=f"{RESULTS}/{_domain}/data/{{source}}/run.json",
            text=f"{RESULTS}/{_domain}/data/{{source}}/log.txt",
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
