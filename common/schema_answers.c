/* What to say to a key that is none: the spelling of today, or the nearest keys. */
#include <string.h>

#include "common/schema.h"

/* Keys of other programs (Megatron, DeepSpeed, Hugging Face, torchtitan, XTuner, PithTrain) and
 * what to write instead. Matched against the whole dotted name and against its last part. */
static const struct {
    const char *foreign, *today;
} answers[] = {
    {"sharding_strategy", "the layout shards: 'layout: legacy:world=8,ep=4'; replicas=R there is "
                          "what hsdp meant, and policy.reshard says when parameters are let go"},
    {"decouple_ep_fsdp", "the kind of the layout says it: 'layout: decoupled:world=8,ep=4' or "
                         "'layout: legacy:world=8,ep=4'"},
    {"expert_model_parallel_size", "write ep=... in layout"},
    {"expert_parallel_size", "write ep=... in layout"},
    {"expert_parallel_degree", "write ep=... in layout"},
    {"ep_size", "write ep=... in layout"},
    {"ep", "write ep=... in layout"},
    {"expert_tensor_parallel_size", "there are no tensor-parallel experts yet; leave it out"},
    {"pipeline_model_parallel_size", "write pp=... in layout"},
    {"pipeline_parallel_size", "write pp=... in layout"},
    {"pipeline_parallel_degree", "write pp=... in layout"},
    {"pp_size", "write pp=... in layout"},
    {"pp", "write pp=... in layout"},
    {"context_parallel_size", "write cp=... in layout"},
    {"context_parallel_degree", "write cp=... in layout"},
    {"sequence_parallel_size", "write cp=... in layout"},
    {"cp_size", "write cp=... in layout"},
    {"sp_size", "write cp=... in layout"},
    {"cp", "write cp=... in layout"},
    {"tensor_model_parallel_size", "there is no tensor parallelism yet; leave it out"},
    {"tensor_parallel_size", "there is no tensor parallelism yet; leave it out"},
    {"tensor_parallel_degree", "there is no tensor parallelism yet; leave it out"},
    {"tp_size", "there is no tensor parallelism yet; leave it out"},
    {"tp", "there is no tensor parallelism yet; leave it out"},
    {"hsdp_sharding_size", "write replicas=... in layout: stage ranks / shard size"},
    {"hsdp_replica", "write replicas=... in layout"},
    {"data_parallel_replicate_degree", "write replicas=... in layout"},
    {"dp_replicate", "write replicas=... in layout"},
    {"replicas", "write replicas=... in layout"},
    {"fsdp_size",
     "it follows from layout (world, pp, ep); write fsdp=... there to have it checked"},
    {"data_parallel_shard_degree", "it follows from layout; write dp_shard=... there to have it "
                                   "checked"},
    {"dp_shard", "it follows from layout; write dp_shard=... there to have it checked"},
    {"data_parallel_size", "it follows from layout (world, pp, cp)"},
    {"dp_size", "it follows from layout (world, pp, cp)"},
    {"dp", "it follows from layout (world, pp, cp)"},
    {"world_size", "write world=... in layout"},
    {"world", "write world=... in layout"},
    {"distributed", "all sizes stand in layout: 'layout: folded:world=64,pp=2,ep=8'"},
    {"parallelism", "all sizes stand in layout: 'layout: folded:world=64,pp=2,ep=8'"},
    {"parallel", "all sizes stand in layout: 'layout: folded:world=64,pp=2,ep=8'"},
    {"fsdp_cfg", "all sizes stand in layout, and policy.reshard says when parameters are let go"},
    {"fsdp", "all sizes stand in layout, and policy.reshard says when parameters are let go"},
    {"zero_stage", "parameters, gradients and optimizer state are always sharded as layout says"},
    {"gradient_accumulation_steps", "accumulation follows from batch.global"},
    {"grad_accumulation_steps", "accumulation follows from batch.global"},
    {"accumulation_steps", "accumulation follows from batch.global"},
    {"global_batch_size", "write batch.global"},
    {"train_batch_size", "write batch.global"},
    {"batch_size", "write batch.global (all ranks) or batch.micro (one data rank)"},
    {"micro_batch_size", "write batch.micro"},
    {"train_micro_batch_size_per_gpu", "write batch.micro"},
    {"per_device_train_batch_size", "write batch.micro"},
    {"local_batch_size", "write batch.micro"},
    {"intra_layer_micro_batch", "write batch.intra_layer"},
    {"intra_layer_micro_batch_size", "write batch.intra_layer"},
    {"sequence_length", "write data.sequence"},
    {"seq_length", "write data.sequence"},
    {"seq_len", "write data.sequence"},
    {"max_length", "write data.sequence"},
    {"pack_max_length", "write data.sequence"},
    {"dataset", "write data.train, a list of files and folders"},
    {"data_path", "write data.train, a list of files and folders"},
    {"train_data", "write data.train, a list of files and folders"},
    {"lr", "write optimizer.lr"},
    {"learning_rate", "write optimizer.lr"},
    {"max_lr", "write optimizer.lr"},
    {"min_lr", "write optimizer.schedule.final, a part of lr"},
    {"lr_min", "write optimizer.schedule.final, a part of lr"},
    {"final_lr", "write optimizer.schedule.final, a part of lr"},
    {"start_lr", "write optimizer.schedule.start, a part of lr"},
    {"lr_warmup_init", "write optimizer.schedule.start, a part of lr"},
    {"adam_beta1", "write optimizer.beta1"},
    {"adam_beta2", "write optimizer.beta2"},
    {"betas", "write optimizer.beta1 and optimizer.beta2"},
    {"adam_epsilon", "write optimizer.epsilon"},
    {"eps", "write optimizer.epsilon"},
    {"max_grad_norm", "write optimizer.clip"},
    {"clip_grad", "write optimizer.clip"},
    {"gradient_clipping", "write optimizer.clip"},
    {"lr_scheduler", "write optimizer.schedule"},
    {"lr_scheduler_type", "write optimizer.schedule.kind"},
    {"lr_decay_style", "write optimizer.schedule.kind"},
    {"scheduler", "write optimizer.schedule"},
    {"warmup_ratio", "write optimizer.schedule.warmup, a part of all steps"},
    {"warmup_steps", "write optimizer.schedule.warmup, a part of all steps"},
    {"lr_warmup_iters", "write optimizer.schedule.warmup, a part of all steps"},
    {"decay_ratio", "write optimizer.schedule.decay, a part of all steps"},
    {"max_steps", "write steps"},
    {"total_step", "write steps"},
    {"total_steps", "write steps"},
    {"training_steps", "write steps"},
    {"train_iters", "write steps"},
    {"epochs", "write steps; data is read again when it ends"},
    {"num_train_epochs", "write steps; data is read again when it ends"},
    {"eval_interval", "write evaluate.every, in steps"},
    {"eval_steps", "write evaluate.every, in steps"},
    {"eval_iters", "write evaluate.windows, a number of sequences"},
    {"validation_split", "held-out files are data.validate"},
    {"output_dir", "write output"},
    {"work_dir", "write output"},
    {"save_folder", "write output"},
    {"pretrained_model_name_or_path", "write init_from, a folder"},
    {"load_from", "write init_from, a folder"},
    {"initial_load_path", "write init_from, a folder"},
    {"reshard_after_forward", "write policy.reshard: after-forward, never or per-call"},
    {"recompute_granularity", "write policy.recompute: none or full"},
    {"recompute_ratio", "write policy.recompute: none or full"},
    {"activation_checkpointing", "write policy.recompute: none or full"},
    {"gradient_checkpointing", "write policy.recompute: none or full"},
    {"moe_token_dispatcher_type", "write policy.dispatch: all-to-all or all-gather"},
    {"dispatcher", "write policy.dispatch: all-to-all or all-gather"},
    {"moe_router_force_load_balancing", "write policy.routing: balanced"},
    {"benchmark", "write policy.routing: balanced"},
    {"moe_load_balance_coef", "write balance.coefficient"},
    {"moe_aux_loss_coeff", "write balance.coefficient"},
    {"router_aux_loss_coef", "write balance.coefficient"},
    {"balancing_loss_alpha", "write balance.coefficient"},
    {"moe_load_balance_type", "write balance.kind"},
    {"moe_router_load_balancing_type", "write balance.kind"},
    {"bf16", "write precision.compute: bf16"},
    {"fp16", "there is no fp16 training; write precision.compute: bf16"},
    {"fp8", "there is no fp8 training yet; write precision.compute: bf16"},
    {"dtype", "write precision.compute and precision.gather"},
    {"torch_dtype", "write precision.compute and precision.gather"},
    {"param_dtype", "write precision.gather"},
    {"reduce_dtype", "write precision.gradient"},
    {"mixed_precision", "write precision.compute and precision.gather"},
    {"ignored_params", "write keep_fp32, a list of patterns"},
    {"ignored_modules", "write keep_fp32, a list of patterns"},
    {"fp32_keys_pattern", "write keep_fp32, a list of patterns"},
    {"freeze", "write frozen, a list of patterns"},
    {"device", "write backend: cpu, cuda or auto"},
    {"tokenizer_name", "write data.tokenizer"},
    {"model_config", "write model"},
    {"model_path", "write model"},
    {"training", "its keys stand by themselves: steps, seed, batch, data, optimizer, ..."},
    {"train", "files to train on are data.train"},
};

enum { ANSWERS = sizeof answers / sizeof *answers };

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* "micro" or "data.micro" for "batch.micro": right but for the section. */
static bool add_misplaced(pl_text *text, const char *unknown)
{
    int count = 0, found = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int i = 0; i < count; ++i) {
        if (!pl_same_word(last_part(keys[i].name), last_part(unknown))) continue;
        pl_text_add(text, "%s'%s'", found ? " or " : "; did you mean ", keys[i].name);
        ++found;
    }
    if (found) pl_text_add_string(text, "?");
    return found > 0;
}

static bool add_foreign(pl_text *text, const char *unknown)
{
    for (int i = 0; i < ANSWERS; ++i) {
        if (!pl_same_word(answers[i].foreign, unknown) &&
            !pl_same_word(answers[i].foreign, last_part(unknown)))
            continue;
        pl_text_add(text, "; today: %s", answers[i].today);
        return true;
    }
    return false;
}

static bool add_nearest(pl_text *text, const char *unknown)
{
    const char *names[2 * PL_RUN_KEYS];
    int count = 0, total = 0;
    const pl_schema_key *keys = pl_schema_keys(&total);
    for (int i = 0; i < total; ++i) names[count++] = keys[i].name;
    const char *near = pl_nearest(unknown, names, count);
    if (!near) { /* a misspelled last part without its section */
        for (int i = 0; i < total; ++i) names[i] = last_part(keys[i].name);
        near = pl_nearest(last_part(unknown), names, total);
        for (int i = 0; near && i < total; ++i)
            if (names[i] == near) near = keys[i].name;
    }
    if (near) pl_text_add(text, "; did you mean '%s'?", near);
    return near != NULL;
}

/* A misspelled section: "polcy: {...}". */
static bool add_nearest_section(pl_text *text, const char *unknown)
{
    static const char *const sections[] = {
        "data", "batch", "policy", "precision", "balance", "optimizer", "optimizer.schedule"};
    const char *near = pl_nearest(unknown, sections, (int)(sizeof sections / sizeof *sections));
    if (near) pl_text_add(text, "; did you mean '%s'?", near);
    return near != NULL;
}

void pl_schema_answer(pl_text *text, const char *unknown)
{
    if (strchr(unknown, '='))
        pl_text_add_string(text, "; a layout inside { } stands in quotes");
    else if (!add_foreign(text, unknown) && !add_misplaced(text, unknown) &&
             !add_nearest_section(text, unknown) && !add_nearest(text, unknown)) {
        pl_text_add_string(text, "; keys: ");
        pl_schema_add_members(text, "");
    }
}
