"""Jobs that train. Several jobs at a time finish earlier than one job with several threads."""

PRETRAIN = Asked("pretrain")


rule pretrain:
    input:
        unpack(PRETRAIN.inputs),
    output:
        run=f"{RESULTS}/{{domain}}/pretrain/{{run}}/seed{{seed}}/run.json",
        pretrained=f"{RESULTS}/{{domain}}/pretrain/{{run}}/seed{{seed}}/pretrained.pt",
        metrics=f"{RESULTS}/{{domain}}/pretrain/{{run}}/seed{{seed}}/metrics.csv",
        series=f"{RESULTS}/{{domain}}/pretrain/{{run}}/seed{{seed}}/series.csv",
    log:
        f"{RESULTS}/{{domain}}/pretrain/{{run}}/seed{{seed}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: PRETRAIN.cores
    resources:
        mem_mb=PRETRAIN.mem_mb,
        runtime=PRETRAIN.minutes,
        gpu=int(CONFIG.require_gpu),
    params:
        job=PRETRAIN.described,
        config=PRETRAIN.config,
        code=PRETRAIN.code,
    script:
        "../scripts/run_stage.py"


FINETUNE = Asked("finetune")


rule finetune:
    input:
        unpack(FINETUNE.inputs),
    output:
        run=f"{RESULTS}/{{domain}}/finetune/{{run}}/run.json",
        metrics=f"{RESULTS}/{{domain}}/finetune/{{run}}/metrics.csv",
        series=f"{RESULTS}/{{domain}}/finetune/{{run}}/series.csv",
    log:
        f"{RESULTS}/{{domain}}/finetune/{{run}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: FINETUNE.cores
    resources:
        mem_mb=FINETUNE.mem_mb,
        runtime=FINETUNE.minutes,
        gpu=int(CONFIG.require_gpu),
    params:
        job=FINETUNE.described,
        config=FINETUNE.config,
        code=FINETUNE.code,
    script:
        "../scripts/run_stage.py"


STUDY = Asked("study")


rule study:
    input:
        unpack(STUDY.inputs),
    output:
        run=f"{RESULTS}/{{domain}}/{{experiment}}/{{study}}/run.json",
        metrics=f"{RESULTS}/{{domain}}/{{experiment}}/{{study}}/metrics.csv",
        series=f"{RESULTS}/{{domain}}/{{experiment}}/{{study}}/series.csv",
    log:
        f"{RESULTS}/{{domain}}/{{experiment}}/{{study}}/log.txt",
    conda:
        "../envs/metapt.yaml"
    threads: STUDY.cores
    resources:
        mem_mb=STUDY.mem_mb,
        runtime=STUDY.minutes,
        gpu=int(CONFIG.require_gpu),
    params:
        job=STUDY.described,
        config=STUDY.config,
        code=STUDY.code,
    script:
        "../scripts/run_stage.py"
