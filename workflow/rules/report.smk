rule collect:
    input:
        unpack(recorded("collect", collect_input)),
    output:
        metrics=f"{RESULTS}/metrics.csv",
        headline=report(
            f"{RESULTS}/headline.md",
            caption="../report/headline.rst",
            category="Headline",
            labels={"what": "headline table", "format": "md"},
        ),
    log:
        run=f"{RESULTS}/run.json",
        text=f"{RESULTS}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="collect",
        config={"experiments": list(EXPERIMENTS)},
        code=code("collect"),
    script:
        "../scripts/run_stage.py"
