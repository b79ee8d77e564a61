rule download_mnist:
    output:
        **{name: f"{RAW}/mnist/{name}" for name in MNIST_FILES},
    log:
        f"{RAW}/mnist/log.txt",
        run=f"{RAW}/mnist/run.json",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 500 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
        gpu=0,
    params:
        stage="download",
        source=SOURCES["mnist"],
        # A function of the output, so that other mirrors of the same files rerun nothing.
        config=lambda wildcards, output: {
            "source": SOURCES["mnist"],
            "mirrors": CONFIG.data.mirrors,
        },
    script:
        "../scripts/run_stage.py"


rule simulate_digits:
    output:
        **{name: f"{RAW}/digits/{name}" for name in MNIST_FILES},
    log:
        f"{RAW}/digits/log.txt",
        run=f"{RAW}/digits/run.json",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="simulate",
        config={"domain": "mnist", "source": "digits"},
        code=code_digest("mnist/simulate.py", "mnist/sources.py"),
    script:
        "../scripts/run_stage.py"


rule prepare_mnist:
    input:
        **{name: f"{RAW}/{{source}}/{name}" for name in MNIST_FILES},
    output:
        data=f"{RESULTS}/mnist/data/{{source}}.pt",
    log:
        f"{RESULTS}/mnist/data/{{source}}.log.txt",
        run=f"{RESULTS}/mnist/data/{{source}}.run.json",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="prepare",
        config={"domain": "mnist"},
        code=code_digest("mnist/prepare.py", "mnist/sources.py"),
    script:
        "../scripts/run_stage.py"
