rule mnist_train:
    input:
        unpack(recorded("mnist_train", mnist_train_input)),
    output:
        run=f"{RESULTS}/mnist/{{experiment}}/{{arm}}/run.json",
        metrics=f"{RESULTS}/mnist/{{experiment}}/{{arm}}/metrics.csv",
        series=f"{RESULTS}/mnist/{{experiment}}/{{arm}}/series.csv",
    log:
        f"{RESULTS}/mnist/{{experiment}}/{{arm}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: mnist_threads
    resources:
        mem_mb=mnist_mem_mb,
        runtime=mnist_runtime,
        gpu=int(CONFIG.require_gpu),
    params:
        stage="train",
        config=mnist_train_config,
        code=code("train", "mnist"),
        threads=mnist_torch_threads,
    script:
        "../scripts/run_stage.py"


rule mnist_summarise:
    input:
        unpack(recorded("mnist_summarise", mnist_summarise_input)),
    output:
        metrics=f"{RESULTS}/mnist/{{experiment}}/metrics.csv",
        claims=report(
            f"{RESULTS}/mnist/{{experiment}}/claims.csv",
            caption="../report/claims.rst",
            category="MNIST",
            subcategory="{experiment}",
            labels={"what": "claims", "format": "csv"},
        ),
        table_csv=report(
            f"{RESULTS}/mnist/{{experiment}}/table.csv",
            caption="../report/table.rst",
            category="MNIST",
            subcategory="{experiment}",
            labels={"what": "table", "format": "csv"},
        ),
        table_md=f"{RESULTS}/mnist/{{experiment}}/table.md",
        table_tex=f"{RESULTS}/mnist/{{experiment}}/table.tex",
        figure_svg=report(
            f"{RESULTS}/mnist/{{experiment}}/figure.svg",
            caption="../report/figure.rst",
            category="MNIST",
            subcategory="{experiment}",
            labels={"what": "figure", "format": "svg"},
        ),
        figure_png=f"{RESULTS}/mnist/{{experiment}}/figure.png",
    log:
        run=f"{RESULTS}/mnist/{{experiment}}/run.json",
        text=f"{RESULTS}/mnist/{{experiment}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="summarise",
        config=mnist_summarise_config,
        code=code("summarise", "mnist"),
    script:
        "../scripts/run_stage.py"
