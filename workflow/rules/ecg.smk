rule ecg_pretrain:
    input:
        unpack(recorded("ecg_pretrain", ecg_input)),
    output:
        run=f"{RESULTS}/ecg/pretrain/{{arm}}/{{access}}/seed{{seed}}/run.json",
        pretrained=f"{RESULTS}/ecg/pretrain/{{arm}}/{{access}}/seed{{seed}}/pretrained.pt",
        metrics=f"{RESULTS}/ecg/pretrain/{{arm}}/{{access}}/seed{{seed}}/metrics.csv",
        series=f"{RESULTS}/ecg/pretrain/{{arm}}/{{access}}/seed{{seed}}/series.csv",
    log:
        f"{RESULTS}/ecg/pretrain/{{arm}}/{{access}}/seed{{seed}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    # Jobs side by side are faster than threads.
    threads: 1
    resources:
        mem_mb=ecg_mem_mb,
        runtime=ecg_pretrain_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="pretrain",
        config=ecg_pretrain_config,
        code=code("pretrain", "ecg"),
    script:
        "../scripts/run_stage.py"


rule ecg_finetune:
    input:
        unpack(recorded("ecg_finetune", ecg_finetune_input)),
    output:
        run=f"{RESULTS}/ecg/finetune/{{arm}}/{{access}}/n{{size}}/run.json",
        metrics=f"{RESULTS}/ecg/finetune/{{arm}}/{{access}}/n{{size}}/metrics.csv",
        series=f"{RESULTS}/ecg/finetune/{{arm}}/{{access}}/n{{size}}/series.csv",
    log:
        f"{RESULTS}/ecg/finetune/{{arm}}/{{access}}/n{{size}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=ecg_mem_mb,
        runtime=ecg_finetune_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="finetune",
        config=ecg_finetune_config,
        code=code("finetune", "ecg"),
    script:
        "../scripts/run_stage.py"


rule ecg_hypergradients:
    input:
        unpack(recorded("ecg_hypergradients", ecg_warp_study_input)),
    output:
        run=f"{RESULTS}/ecg/warp_study/{{arm}}/seed{{seed}}/run.json",
        metrics=f"{RESULTS}/ecg/warp_study/{{arm}}/seed{{seed}}/metrics.csv",
        series=f"{RESULTS}/ecg/warp_study/{{arm}}/seed{{seed}}/series.csv",
    log:
        f"{RESULTS}/ecg/warp_study/{{arm}}/seed{{seed}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=ecg_mem_mb,
        runtime=ecg_pretrain_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="study",
        config=ecg_warp_study_config,
        code=code("study", "ecg", "warp_study"),
    script:
        "../scripts/run_stage.py"


rule ecg_views:
    input:
        unpack(recorded("ecg_views", ecg_views_input)),
    output:
        run=f"{RESULTS}/ecg/augmentations/views.run.json",
        views=f"{RESULTS}/ecg/augmentations/views.npz",
        metrics=f"{RESULTS}/ecg/augmentations/views.metrics.csv",
    log:
        f"{RESULTS}/ecg/augmentations/views.log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=ecg_mem_mb,
        runtime=lambda wildcards, attempt: 30 * attempt,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="study",
        config=ecg_views_config,
        code=code("study", "ecg", "augmentations"),
    script:
        "../scripts/run_stage.py"


rule ecg_summarise:
    input:
        unpack(recorded("ecg_summarise", ecg_summarise_input)),
    output:
        metrics=f"{RESULTS}/ecg/{{experiment}}/metrics.csv",
        claims=report(
            f"{RESULTS}/ecg/{{experiment}}/claims.csv",
            caption="../report/claims.rst",
            category="ECG",
            subcategory="{experiment}",
            labels={"what": "claims", "format": "csv"},
        ),
        table_csv=report(
            f"{RESULTS}/ecg/{{experiment}}/table.csv",
            caption="../report/table.rst",
            category="ECG",
            subcategory="{experiment}",
            labels={"what": "table", "format": "csv"},
        ),
        table_md=f"{RESULTS}/ecg/{{experiment}}/table.md",
        table_tex=f"{RESULTS}/ecg/{{experiment}}/table.tex",
        figure_svg=report(
            f"{RESULTS}/ecg/{{experiment}}/figure.svg",
            caption="../report/figure.rst",
            category="ECG",
            subcategory="{experiment}",
            labels={"what": "figure", "format": "svg"},
        ),
        figure_png=f"{RESULTS}/ecg/{{experiment}}/figure.png",
    log:
        run=f"{RESULTS}/ecg/{{experiment}}/run.json",
        text=f"{RESULTS}/ecg/{{experiment}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="summarise",
        config=ecg_summarise_config,
        code=code("summarise", "ecg"),
    script:
        "../scripts/run_stage.py"
