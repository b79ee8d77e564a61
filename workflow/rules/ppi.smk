rule ppi_pretrain:
    input:
        unpack(recorded("ppi_pretrain", ppi_pretrain_input)),
    output:
        run=f"{RESULTS}/ppi/pretrain/{{arm}}/{{setting}}/seed{{seed}}/run.json",
        pretrained=f"{RESULTS}/ppi/pretrain/{{arm}}/{{setting}}/seed{{seed}}/pretrained.pt",
        metrics=f"{RESULTS}/ppi/pretrain/{{arm}}/{{setting}}/seed{{seed}}/metrics.csv",
        series=f"{RESULTS}/ppi/pretrain/{{arm}}/{{setting}}/seed{{seed}}/series.csv",
    log:
        f"{RESULTS}/ppi/pretrain/{{arm}}/{{setting}}/seed{{seed}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    # Jobs side by side are faster than threads.
    threads: 1
    resources:
        mem_mb=ppi_pretrain_mem_mb,
        runtime=ppi_pretrain_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="pretrain",
        config=ppi_pretrain_config,
        code=code("pretrain", "ppi"),
    script:
        "../scripts/run_stage.py"


rule ppi_finetune:
    input:
        unpack(recorded("ppi_finetune", ppi_finetune_input)),
    output:
        run=f"{RESULTS}/ppi/finetune/{{arm}}/{{setting}}/run.json",
        metrics=f"{RESULTS}/ppi/finetune/{{arm}}/{{setting}}/metrics.csv",
        series=f"{RESULTS}/ppi/finetune/{{arm}}/{{setting}}/series.csv",
    log:
        f"{RESULTS}/ppi/finetune/{{arm}}/{{setting}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=ppi_finetune_mem_mb,
        runtime=ppi_finetune_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="finetune",
        config=ppi_finetune_config,
        code=code("finetune", "ppi"),
    script:
        "../scripts/run_stage.py"


rule ppi_cka:
    input:
        unpack(recorded("ppi_cka", ppi_cka_input)),
    output:
        run=f"{RESULTS}/ppi/representations/cka.run.json",
        metrics=f"{RESULTS}/ppi/representations/cka.csv",
    log:
        f"{RESULTS}/ppi/representations/cka.log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: ppi_mem_mb(256, attempt),
        runtime=lambda wildcards, attempt: 60 * attempt,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="study",
        config=ppi_cka_config,
        code=code("study", "ppi", "representations"),
    script:
        "../scripts/run_stage.py"


rule ppi_summarise:
    input:
        unpack(recorded("ppi_summarise", ppi_summarise_input)),
    output:
        metrics=f"{RESULTS}/ppi/{{experiment}}/metrics.csv",
        claims=report(
            f"{RESULTS}/ppi/{{experiment}}/claims.csv",
            caption="../report/claims.rst",
            category="PPI",
            subcategory="{experiment}",
            labels={"what": "claims", "format": "csv"},
        ),
        table_csv=report(
            f"{RESULTS}/ppi/{{experiment}}/table.csv",
            caption="../report/table.rst",
            category="PPI",
            subcategory="{experiment}",
            labels={"what": "table", "format": "csv"},
        ),
        table_md=f"{RESULTS}/ppi/{{experiment}}/table.md",
        table_tex=f"{RESULTS}/ppi/{{experiment}}/table.tex",
        figure_svg=report(
            f"{RESULTS}/ppi/{{experiment}}/figure.svg",
            caption="../report/figure.rst",
            category="PPI",
            subcategory="{experiment}",
            labels={"what": "figure", "format": "svg"},
        ),
        figure_png=f"{RESULTS}/ppi/{{experiment}}/figure.png",
    log:
        run=f"{RESULTS}/ppi/{{experiment}}/run.json",
        text=f"{RESULTS}/ppi/{{experiment}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="summarise",
        config=ppi_summarise_config,
        code=code("summarise", "ppi"),
    script:
        "../scripts/run_stage.py"
