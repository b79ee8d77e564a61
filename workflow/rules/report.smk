"""The end of each experiment: tables, figure and claims; and all of them together."""

SUMMARISE = Asked("summarise")


rule summarise:
    input:
        unpack(SUMMARISE.inputs),
    output:
        metrics=f"{RESULTS}/{{domain}}/{{experiment}}/metrics.csv",
        claims=shown("{domain}/{experiment}/claims.csv", "claims", "3. claims and verdicts", **OF_EXPERIMENT),
        table_csv=f"{RESULTS}/{{domain}}/{{experiment}}/table.csv",
        table_md=f"{RESULTS}/{{domain}}/{{experiment}}/table.md",
        table_tex=f"{RESULTS}/{{domain}}/{{experiment}}/table.tex",
        table_html=shown("{domain}/{experiment}/table.html", "table", "2. table", **OF_EXPERIMENT),
        differences=f"{RESULTS}/{{domain}}/{{experiment}}/differences.csv",
        figure_svg=shown("{domain}/{experiment}/figure.svg", "figure", "1. figure", **OF_EXPERIMENT),
        figure_png=f"{RESULTS}/{{domain}}/{{experiment}}/figure.png",
    log:
        run=f"{RESULTS}/{{domain}}/{{experiment}}/run.json",
        text=f"{RESULTS}/{{domain}}/{{experiment}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: SUMMARISE.cores
    resources:
        mem_mb=SUMMARISE.mem_mb,
        runtime=SUMMARISE.minutes,
        gpu=0,
    params:
        job=SUMMARISE.described,
        config=SUMMARISE.config,
        code=SUMMARISE.code,
        title=lambda wildcards: experiment(wildcards).title,
        figure_title=lambda wildcards: experiment(wildcards).figure_title or experiment(wildcards).title,
    script:
        "../scripts/run_stage.py"


PAGE = Asked("page")


rule page:
    input:
        unpack(PAGE.inputs),
    output:
        metrics=f"{RESULTS}/metrics.csv",
        claims=f"{RESULTS}/claims.csv",
        headline=shown("headline.md", "headline", "all claims, and the tables beside the paper's numbers", **HEADLINE),
        page=shown("index.html", "page", "all results on one page", **HEADLINE),
    log:
        run=f"{RESULTS}/run.json",
        text=f"{RESULTS}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: PAGE.cores
    resources:
        mem_mb=PAGE.mem_mb,
        runtime=PAGE.minutes,
        gpu=0,
    params:
        job=PAGE.described,
        config=PAGE.config,
        code=PAGE.code,
    script:
        "../scripts/run_stage.py"
