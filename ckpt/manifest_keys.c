#include "ckpt/manifest_keys.h"

static const pl_manifest_key of_manifest[] = {
    {"format", "1: the version of this page"},
    {"requires", "features that a reader must know, a list of words: [] today; refuse others"},
    {"trained", "true: it has a place in training; false: imported weights"},
    {"step", "optimizer steps done"},
    {"updates", "those of them that moved the weights"},
    {"tokens", "valid tokens seen"},
    {"windows", "training samples read: the place in the data"},
    {"seed", "of values and data"},
    {"optimizer", "adamw or sgd; null where not trained"},
    {"layout", "of the ranks that wrote it, in the notation above"},
    {"model_name", "the model's name; a name and no more"},
    {"model", "what config.json says, as far as pleat uses it"},
    {"keep_fp32", "patterns of tensors kept whole and fp32, a list"},
    {"frozen", "patterns of tensors that are not trained, a list"},
    {"settings", "every key of the run file with its value, an object"},
    {"provenance", "program, version, commit, command and the like, an object"},
    {"tensors", "the tensors of the model in its order, a list of objects: next table"},
    {"files", "[name, bytes, hash] of index.h5, then of the three files of each rank that wrote "
              "something, ascending: json, sums, h5"},
    {"hash", "of this file: see below"},
};

static const pl_manifest_key of_tensor[] = {
    {"name", "as Hugging Face has it; experts stacked: model.layers.0.mlp.experts.up_proj.weight"},
    {"shape", "[rows, columns], or [rows] of a vector; rows of all experts together"},
    {"experts", "how many are stacked along the rows, the first outermost; 0: no experts"},
    {"class", "dense, expert, or ignored (kept whole on every rank)"},
    {"frozen", "true: no optimizer state, and the stored type kept"},
    {"param", "element type of the parameter as trained: fp32, bf16, fp16"},
    {"master", "fp32 where a master is kept; no key where not"},
    {"adam_m", "fp32 where the first moment is kept"},
    {"adam_v", "fp32 where the second moment is kept"},
};

static const pl_manifest_key of_rank[] = {
    {"rank", "its number"},
    {"bytes", "length of its HDF5 file"},
    {"outside", "hash of the bytes of that file that are in no box, in their order"},
    {"sums", "hash of its file of sums"},
    {"boxes",
     "an object of param, master, adam_m, adam_v: each a list of boxes [tensor, first row, "
     "row after the last, type, offset]"},
};

static const struct {
    const pl_manifest_key *keys;
    int count;
} objects[PL_KEYS_COUNT] = {
    [PL_KEYS_MANIFEST] = {of_manifest, sizeof of_manifest / sizeof *of_manifest},
    [PL_KEYS_TENSOR] = {of_tensor, sizeof of_tensor / sizeof *of_tensor},
    [PL_KEYS_RANK] = {of_rank, sizeof of_rank / sizeof *of_rank},
};

enum { MOST_KEYS = sizeof of_manifest / sizeof *of_manifest };

const pl_manifest_key *pl_manifest_keys(pl_manifest_object object, int *count)
{
    *count = objects[object].count;
    return objects[object].keys;
}

pl_status pl_manifest_check_keys(const pl_json_node *node, pl_manifest_object object)
{
    const char *names[MOST_KEYS];
    int count = 0;
    const pl_manifest_key *keys = pl_manifest_keys(object, &count);
    for (int i = 0; i < count; ++i) names[i] = keys[i].name;
    return pl_json_check_keys(node, names, count);
}
