"""The end of each experiment: tables, figure and claims; and all of them together."""

SUMMARISE = Asked("summarise")


rule summarise:
    input:
        unpack(SUMMARISE.inputs),
    output:
        metrics=f"{RESULTS}/{{domain}}/{{experiment}}/metrics.csv",
        claims=report(
            f"{RESULTS}/{{domain}}/{{experiment}}/claims.csv",
            caption="../report/claims.rst",
            category=category,
            subcategory=heading,
            labels={"what": "3. claims and verdicts"},
        ),
        table_csv=f"{RESULTS}/{{domain}}/{{experiment}}/table.csv",
        table_md=f"{RESULTS}/{{domain}}/{{experiment}}/table.md",
        table_tex=f"{RESULTS}/{{domain}}/{{experiment}}/table.tex",
        table_html=report(
            f"{RESULTS}/{{domain}}/{{experiment}}/table.html",
            caption="../report/table.rst",
            category=category,
            subcategory=heading,
            labels={"what": "2. table"},
        ),
        differences=f"{RESULTS}/{{domain}}/{{experiment}}/differences.csv",
        figure_svg=report(
            f"{RESULTS}/{{domain}}/{{experiment}}/figure.svg",
            caption="../report/figure.rst",
            category=category,
            subcategory=heading,
            labels={"what": "1. figure"},
        ),
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


COLLECT = Asked("collect")


rule collect:
    input:
        unpack(COLLECT.inputs),
    output:
        metrics=f"{RESULTS}/metrics.csv",
        claims=f"{RESULTS}/claims.csv",
        headline=report(
            f"{RESULTS}/headline.md",
            caption="../report/headline.rst",
            category="1. Headline",
            labels={"what": "the paper's numbers beside ours, and all claims"},
        ),
    log:
        run=f"{RESULTS}/run.json",
        text=f"{RESULTS}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: COLLECT.cores
    resources:
        mem_mb=COLLECT.mem_mb,
        runtime=COLLECT.minutes,
        gpu=0,
    params:
        job=COLLECT.described,
        config=COLLECT.config,
        code=COLLECT.code,
    script:
        "../scripts/run_stage.py"


PAGE = Asked("page")


rule page:
    input:
        unpack(PAGE.inputs),
    output:
        page=report(
            f"{RESULTS}/index.html",
            caption="../report/page.rst",
            category="1. Headline",
            labels={"what": "all results on one page"},
        ),
    log:
        run=f"{RESULTS}/index.run.json",
        text=f"{RESULTS}/index.log.txt",
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
