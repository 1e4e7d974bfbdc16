/* pleat-sim tables: what the pages under docs/ quote, printed by the program that it is about. */
#include <string.h>

#include "common/model.h"
#include "common/run_file.h"
#include "sim/operations.h"
#include "sim/options.h"
#include "sim/proof.h"

static pl_status add_keys(pl_text *text)
{
    pl_run_describe_keys(text, true);
    return pl_text_status(text);
}

static pl_status add_operations(pl_text *text)
{
    pl_operations_print(text);
    return pl_text_status(text);
}

static pl_status add_proofs(pl_text *text)
{
    pl_text_add_string(text, "| proof | what holds |\n|---|---|\n");
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        pl_text_add(text, "| %s | %s |\n", pl_proof_name((pl_proof_id)i),
                    pl_proof_claim((pl_proof_id)i));
    return pl_text_status(text);
}

static pl_status add_buffers(pl_text *text)
{
    static const char *const scopes[] = {"a part", "a layer and micro-batch", "a micro-batch",
                                         "the step"};
    pl_text_add_string(text, "| buffer | one for | class |\n|---|---|---|\n");
    for (int i = 0; i < PL_BUFFER_KIND_COUNT; ++i) {
        pl_buffer_kind kind = (pl_buffer_kind)i;
        pl_text_add(text, "| `%s` | %s | %s |\n", pl_buffer_kind_stem(kind),
                    scopes[pl_buffer_kind_scope(kind)],
                    pl_buffer_class_name(pl_buffer_kind_class(kind)));
    }
    return pl_text_status(text);
}

static pl_status add_roles(pl_text *text)
{
    static const char *const meanings[PL_GROUP_ROLE_COUNT] = {
        [PL_GROUP_WORLD] = "all ranks",
        [PL_GROUP_STAGE] = "the ranks of one pipeline stage: all data and cp ranks",
        [PL_GROUP_PIPELINE] = "one rank of each stage",
        [PL_GROUP_DATA] = "ranks that differ in the batch index alone",
        [PL_GROUP_CONTEXT] = "ranks that differ in the sequence slice alone",
        [PL_GROUP_DENSE_SHARD] = "dense parameters are sharded over these",
        [PL_GROUP_DENSE_REPLICA] = "and copied over these",
        [PL_GROUP_EXPERT_OWNER] = "the ep group: each owns a block of experts",
        [PL_GROUP_EXPERT_SHARD] = "an owner's experts are sharded over these",
        [PL_GROUP_EXPERT_REPLICA] = "and copied over these",
        [PL_GROUP_EXPERT_BLOCK] = "owners and shards: together they hold every expert once",
    };
    pl_text_add_string(text, "| group | who is in it |\n|---|---|\n");
    for (int i = PL_GROUP_WORLD; i < PL_GROUP_ROLE_COUNT; ++i)
        pl_text_add(text, "| %s | %s |\n", pl_group_role_name((pl_group_role)i), meanings[i]);
    return pl_text_status(text);
}

static pl_status add_models(pl_text *text)
{
    static const char *const meanings[PL_FAMILY_COUNT] = {
        [PL_FAMILY_LLAMA] = "dense; grouped heads, biases of attention and MLP where the file says "
                            "so, Llama 3.1's rotary scaling",
        [PL_FAMILY_QWEN3] = "dense; norms of queries and keys",
        [PL_FAMILY_QWEN3_MOE] = "the same with routed experts in all layers or some",
        [PL_FAMILY_MIXTRAL] = "Llama's attention, routed experts in every layer",
        [PL_FAMILY_DEEPSEEK_V2] =
            "latent attention, dense first layers, then routed experts, alone or by groups, beside "
            "shared ones; yarn",
    };
    pl_text_add_string(text, "| `model_type` | what it is | layout, weights | plans, training |\n"
                             "|---|---|---|---|\n");
    for (int i = 0; i < PL_FAMILY_COUNT; ++i) {
        pl_family family = (pl_family)i;
        pl_text_add(text, "| `%s` | %s | yes | %s |\n", pl_family_name(family), meanings[i],
                    pl_family_is_planned(family) ? "yes" : "no: refused");
    }
    return pl_text_status(text);
}

static const struct {
    const char *name;
    pl_status (*add)(pl_text *text);
} tables[] = {{"keys", add_keys},     {"operations", add_operations}, {"buffers", add_buffers},
              {"proofs", add_proofs}, {"groups", add_roles},          {"models", add_models}};

enum { TABLES = sizeof tables / sizeof *tables };

static const char tables_help[] =
    "Usage: pleat-sim tables NAME\n\n"
    "Prints a table as Markdown: keys (of run files and --set), operations and buffers (of\n"
    "plans), proofs, groups, models (by model_type). The pages under docs/ quote them.\n\n"
    "  -h, --help          this text\n\n"
    "Example:\n"
    "  pleat-sim tables keys\n";

pl_status pl_command_tables(pl_output *output, int count, char **arguments)
{
    const char *names[TABLES];
    for (int i = 0; i < TABLES; ++i) names[i] = tables[i].name;
    if (count == 2 && (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0)) {
        pl_text_add_string(&output->text, tables_help);
        return pl_text_status(&output->text);
    }
    if (count != 2)
        return PL_FAIL(PL_BAD_INPUT, "tables takes one name: keys, operations, buffers, proofs, "
                                     "groups or models; see 'pleat-sim tables --help'");
    for (int i = 0; i < TABLES; ++i)
        if (strcmp(arguments[1], names[i]) == 0) return tables[i].add(&output->text);
    pl_text text = {0};
    pl_text_add_string(&text, "no table ");
    pl_text_add_quoted(&text, arguments[1]);
    pl_text_add_choices(&text, arguments[1], names, TABLES);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&text));
    pl_text_free(&text);
    return status;
}
