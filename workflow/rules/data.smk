rule download_mnist:
    output:
        **{name: f"{RAW}/mnist/{name}" for name in MNIST_FILES},
    log:
        run=f"{RAW}/mnist/run.json",
        text=f"{RAW}/mnist/log.txt",
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
    input:
        unpack(recorded("simulate_digits")),
    output:
        **{name: f"{RAW}/digits/{name}" for name in MNIST_FILES},
    log:
        run=f"{RAW}/digits/run.json",
        text=f"{RAW}/digits/log.txt",
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
        code=code("simulate", "mnist"),
    script:
        "../scripts/run_stage.py"


rule prepare_mnist:
    input:
        unpack(recorded("prepare_mnist", raw(MNIST_FILES))),
    output:
        data=f"{RESULTS}/mnist/data/{{source}}.pt",
    log:
        run=f"{RESULTS}/mnist/data/{{source}}.run.json",
        text=f"{RESULTS}/mnist/data/{{source}}.log.txt",
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
        code=code("prepare", "mnist"),
    script:
        "../scripts/run_stage.py"


rule download_ptbxl:
    output:
        **{name: f"{RAW}/ptbxl-{{version}}/{name}" for name in ECG_FILES},
    log:
        run=f"{RAW}/ptbxl-{{version}}/run.json",
        text=f"{RAW}/ptbxl-{{version}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 240 * attempt,
        gpu=0,
    params:
        stage="download",
        source=lambda wildcards: SOURCES[f"ptbxl-{wildcards.version}"],
        # As in download_mnist.
        config=lambda wildcards, output: {
            "source": SOURCES[f"ptbxl-{wildcards.version}"],
            "mirrors": CONFIG.data.mirrors,
        },
    script:
        "../scripts/run_stage.py"


rule simulate_ecg:
    input:
        unpack(recorded("simulate_ecg")),
    output:
        **{name: f"{RAW}/simulated/{name}" for name in ECG_FILES},
    log:
        run=f"{RAW}/simulated/run.json",
        text=f"{RAW}/simulated/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="simulate",
        config={"domain": "ecg", "source": "simulated"},
        code=code("simulate", "ecg"),
    script:
        "../scripts/run_stage.py"


rule prepare_ecg:
    input:
        unpack(recorded("prepare_ecg", raw(ECG_FILES))),
    output:
        signals=f"{RESULTS}/ecg/data/{{source}}/signals.npy",
        records=f"{RESULTS}/ecg/data/{{source}}/records.csv",
    log:
        run=f"{RESULTS}/ecg/data/{{source}}/run.json",
        text=f"{RESULTS}/ecg/data/{{source}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
        gpu=0,
    params:
        stage="prepare",
        config={"domain": "ecg"},
        code=code("prepare", "ecg"),
    script:
        "../scripts/run_stage.py"


# A job for each file: one that fails leaves the others where they are.
rule download_string:
    output:
        file=f"{RAW}/string-{{version}}/{{taxon}}.protein.{{kind}}.v{{version}}.txt.gz",
    log:
        run=f"{RAW}/string-{{version}}/{{taxon}}.{{kind}}.run.json",
        text=f"{RAW}/string-{{version}}/{{taxon}}.{{kind}}.log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 500 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
        gpu=0,
    params:
        stage="download",
        source=string_source,
        # As in download_mnist.
        config=lambda wildcards, output: {
            "source": string_source(wildcards),
            "mirrors": CONFIG.data.mirrors,
        },
    script:
        "../scripts/run_stage.py"


rule download_hu2020:
    output:
        file=f"{RAW}/hu2020/{ppi_sources.ARCHIVE}",
    log:
        run=f"{RAW}/hu2020/run.json",
        text=f"{RAW}/hu2020/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 500 * attempt,
        runtime=lambda wildcards, attempt: 240 * attempt,
        gpu=0,
    params:
        stage="download",
        source=SOURCES["hu2020"],
        # As in download_mnist.
        config=lambda wildcards, output: {
            "source": SOURCES["hu2020"],
            "mirrors": CONFIG.data.mirrors,
        },
    script:
        "../scripts/run_stage.py"


rule simulate_ppi:
    input:
        unpack(recorded("simulate_ppi")),
    output:
        **{name: f"{RAW}/ppi-simulated/{name}" for name in ppi_sources.string_names(ppi_sources.SIMULATED)},
    log:
        run=f"{RAW}/ppi-simulated/run.json",
        text=f"{RAW}/ppi-simulated/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        gpu=0,
    params:
        stage="simulate",
        config={"domain": "ppi", "source": "simulated"},
        code=code("simulate", "ppi"),
    script:
        "../scripts/run_stage.py"


rule prepare_ppi:
    input:
        unpack(recorded("prepare_ppi", ppi_raw)),
    output:
        graphs=f"{RESULTS}/ppi/data/{{source}}/graphs.npz",
        tasks=f"{RESULTS}/ppi/data/{{source}}/tasks.csv",
        counts=f"{RESULTS}/ppi/data/{{source}}/counts.csv",
    log:
        run=f"{RESULTS}/ppi/data/{{source}}/run.json",
        text=f"{RESULTS}/ppi/data/{{source}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: 1
    resources:
        mem_mb=ppi_prepare_mem_mb,
        runtime=lambda wildcards, attempt: 120 * attempt,
        gpu=0,
    params:
        stage="prepare",
        config=ppi_prepare_config,
        code=code("prepare", "ppi"),
    script:
        "../scripts/run_stage.py"
