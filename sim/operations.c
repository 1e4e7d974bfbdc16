#include "sim/operations.h"

_Static_assert((int)PL_BUFFER_KIND_COUNT <= 128, "a bit for each kind of buffer");

#define BIT(kind) ((pl_kind_set)1 << PL_BUF_##kind)

/* What modules compute with, and where their gradients of it go. */
#define WEIGHTS          (BIT(PARAMETER) | BIT(FULL) | BIT(IGNORED))
#define GRADIENTS        (BIT(GRADIENT_SUM) | BIT(GRADIENT) | BIT(IGNORED_GRADIENT))
#define EXPERT_WEIGHTS   (BIT(PARAMETER) | BIT(FULL)) /* routed experts are always sharded */
#define EXPERT_GRADIENTS (BIT(GRADIENT_SUM) | BIT(GRADIENT))
#define SHARD_GRADIENTS  (BIT(GRADIENT) | BIT(IGNORED_GRADIENT))
#define SQUARES          (BIT(DENSE_SQUARES) | BIT(EXPERT_SQUARES) | BIT(IGNORED_SQUARES))
#define MOMENTS          (BIT(ADAM_M) | BIT(ADAM_V) | BIT(IGNORED_M) | BIT(IGNORED_V))
#define RESIDENTS        (MOMENTS | BIT(MASTER) | BIT(PARAMETER) | BIT(IGNORED))
#define SAVED                                                                                      \
    (BIT(HOST_PARAMETER) | BIT(HOST_MASTER) | BIT(HOST_ADAM_M) | BIT(HOST_ADAM_V) |                \
     BIT(HOST_IGNORED) | BIT(HOST_IGNORED_M) | BIT(HOST_IGNORED_V))

static const pl_operation_facts facts[PL_OPERATION_COUNT] = {
    [PL_OP_LOAD_BATCH] = {"read the samples of the step; the index in the data group says which",
                          PL_STREAM_HOST, 0, BIT(BATCH)},
    [PL_OP_COUNT_TOKENS] = {"count the valid labels of this rank", PL_STREAM_HOST, BIT(BATCH),
                            BIT(TOKEN_COUNT)},
    [PL_OP_COPY] = {"copy between host and device", PL_STREAM_COPY,
                    RESIDENTS | SAVED | BIT(BATCH) | BIT(INITIAL) | BIT(INITIAL_IGNORED),
                    RESIDENTS | SAVED | BIT(TOKENS) | BIT(LABELS) | BIT(OUTGOING) |
                        BIT(OUTGOING_IGNORED)},
    [PL_OP_INITIALIZE] = {"make the initial values that this rank holds", PL_STREAM_HOST, 0,
                          BIT(INITIAL) | BIT(INITIAL_IGNORED)},
    [PL_OP_WRITE] = {"hand out what this rank holds: parameters, fp32 where they are trained, else "
                     "as stored; or one of the buffers that a checkpoint keeps, as it is",
                     PL_STREAM_HOST, SAVED | BIT(OUTGOING) | BIT(OUTGOING_IGNORED), 0},
    [PL_OP_READ] = {"take in, from a checkpoint, what this rank is to hold", PL_STREAM_HOST, 0,
                    SAVED},
    [PL_OP_ZERO] = {"fill the moments of the optimizer with zeroes", PL_STREAM_COMPUTE, 0, MOMENTS},
    [PL_OP_CAST] = {"change the element type: of gathered parameters, of gradients to and from the "
                    "wire, of updated masters",
                    PL_STREAM_COMPUTE,
                    BIT(PARAMETER) | BIT(WIRE) | BIT(MASTER) | BIT(GRADIENT_SUM) |
                        BIT(GRADIENT_PIECE),
                    BIT(FULL) | BIT(PARAMETER) | BIT(GRADIENT_WIRE) | BIT(GRADIENT)},
    [PL_OP_GATHER] = {"all-gather the parameters of a unit over its shard group",
                      PL_STREAM_COMMUNICATION, BIT(PARAMETER), BIT(WIRE) | BIT(FULL)},
    [PL_OP_RESHARD] = {"let the gathered copy of a unit go (it ends `full`)", PL_STREAM_COMPUTE, 0,
                       0},
    [PL_OP_REDUCE] = {"reduce-scatter the gradients of a unit over its shard group: a sum",
                      PL_STREAM_COMMUNICATION, BIT(GRADIENT_SUM) | BIT(GRADIENT_WIRE),
                      BIT(GRADIENT_PIECE) | BIT(GRADIENT)},
    [PL_OP_ACCUMULATE] = {"add a round's reduced gradients to those of the step", PL_STREAM_COMPUTE,
                          BIT(GRADIENT_PIECE) | BIT(GRADIENT), BIT(GRADIENT)},
    [PL_OP_EMBED] = {"token embedding, and its gradient", PL_STREAM_COMPUTE,
                     WEIGHTS | GRADIENTS | BIT(TOKENS) | BIT(D_INPUT), GRADIENTS | BIT(INPUT)},
    [PL_OP_ATTENTION] = {"norm, attention, residual", PL_STREAM_COMPUTE,
                         WEIGHTS | GRADIENTS | BIT(INPUT) | BIT(SAVE_ATTENTION) | BIT(D_ATTENDED),
                         GRADIENTS | BIT(ATTENDED) | BIT(SAVE_ATTENTION) | BIT(D_INPUT)},
    [PL_OP_MLP] = {"norm, dense SwiGLU, residual", PL_STREAM_COMPUTE,
                   WEIGHTS | GRADIENTS | BIT(ATTENDED) | BIT(SAVE_MLP) | BIT(D_INPUT),
                   GRADIENTS | BIT(INPUT) | BIT(SAVE_MLP) | BIT(D_ATTENDED)},
    [PL_OP_ROUTE] = {"norm, router scores, top-k choice; counts tokens for the balance loss, whose "
                     "gradient its backward adds",
                     PL_STREAM_COMPUTE,
                     WEIGHTS | GRADIENTS | BIT(ATTENDED) | BIT(ROUTE) | BIT(NORMED) |
                         BIT(SAVE_ROUTE) | BIT(D_NORMED) | BIT(D_ROUTE) | BIT(D_ATTENDED) |
                         BIT(BALANCE) | BIT(BALANCE_SCORES) | BIT(TOKEN_COUNT),
                     GRADIENTS | BIT(NORMED) | BIT(ROUTE) | BIT(COUNTS) | BIT(SAVE_ROUTE) |
                         BIT(BALANCE) | BIT(BALANCE_SCORES) | BIT(D_ATTENDED)},
    [PL_OP_EXCHANGE_COUNTS] = {"all-to-all of the rows that each rank is to expect",
                               PL_STREAM_COMMUNICATION, BIT(COUNTS), BIT(COUNTS_IN)},
    [PL_OP_BIND] = {"wait for the counts and fix the sizes that routing decided: C, R",
                    PL_STREAM_HOST, BIT(COUNTS) | BIT(COUNTS_IN), BIT(ROWS)},
    [PL_OP_PERMUTE] = {"rows into the order of their destinations, and back", PL_STREAM_COMPUTE,
                       BIT(NORMED) | BIT(ROUTE) | BIT(D_SEND), BIT(SEND) | BIT(D_NORMED)},
    [PL_OP_SHARE_ROUTES] = {"all-gather of choices and weights (all-gather dispatch); backward, "
                            "reduce-scatter of the weights' gradients",
                            PL_STREAM_COMMUNICATION, BIT(ROUTE) | BIT(D_ROUTES_IN),
                            BIT(ROUTES_IN) | BIT(D_ROUTE)},
    [PL_OP_DISPATCH] = {"rows to the owners of their experts; backward, gradients to the tokens' "
                        "rank",
                        PL_STREAM_COMMUNICATION,
                        BIT(SEND) | BIT(NORMED) | BIT(ROWS) | BIT(D_RECEIVED),
                        BIT(RECEIVED) | BIT(D_SEND) | BIT(D_NORMED)},
    [PL_OP_EXPERTS] = {"grouped SwiGLU of the routed experts", PL_STREAM_COMPUTE,
                       EXPERT_WEIGHTS | EXPERT_GRADIENTS | BIT(RECEIVED) | BIT(SEND) | BIT(NORMED) |
                           BIT(ROWS) | BIT(ROUTE) | BIT(ROUTES_IN) | BIT(SAVE_EXPERTS) |
                           BIT(D_EXPERT_OUT) | BIT(D_RETURNED) | BIT(D_ACTIVATION),
                       EXPERT_GRADIENTS | BIT(EXPERT_OUT) | BIT(RETURNED) | BIT(SAVE_EXPERTS) |
                           BIT(D_ACTIVATION) | BIT(D_RECEIVED) | BIT(D_SEND) | BIT(D_NORMED) |
                           BIT(D_ROUTE) | BIT(D_ROUTES_IN)},
    [PL_OP_COMBINE] = {"rows back to their tokens' ranks; backward, gradients to the owners",
                       PL_STREAM_COMMUNICATION, BIT(EXPERT_OUT) | BIT(ROWS) | BIT(D_RETURNED),
                       BIT(RETURNED) | BIT(D_EXPERT_OUT)},
    [PL_OP_MERGE] = {"weighted sum of a token's rows, residual", PL_STREAM_COMPUTE,
                     BIT(RETURNED) | BIT(ROUTE) | BIT(ATTENDED) | BIT(D_INPUT),
                     BIT(INPUT) | BIT(D_RETURNED) | BIT(D_ROUTE) | BIT(D_ATTENDED)},
    [PL_OP_FINAL_NORM] = {"norm before the head", PL_STREAM_COMPUTE,
                          WEIGHTS | GRADIENTS | BIT(INPUT) | BIT(D_FINAL),
                          GRADIENTS | BIT(FINAL) | BIT(D_INPUT)},
    [PL_OP_LOSS] = {"head, cross-entropy and, in a step, their gradients, in pieces",
                    PL_STREAM_COMPUTE,
                    WEIGHTS | GRADIENTS | BIT(FINAL) | BIT(LABELS) | BIT(LOSS_SUM),
                    GRADIENTS | BIT(D_FINAL) | BIT(LOSS_SUM)},
    [PL_OP_LOGITS] = {"head on one position of the micro-batch, named when the program is run",
                      PL_STREAM_COMPUTE, WEIGHTS | BIT(FINAL), BIT(LOGITS)},
    [PL_OP_SAMPLE] = {"draw a token from the logits", PL_STREAM_HOST, BIT(LOGITS), 0},
    [PL_OP_BALANCE] = {"load-balance loss from the reduced counts", PL_STREAM_COMPUTE,
                       BIT(BALANCE) | BIT(BALANCE_TOTAL) | BIT(BALANCE_SCORES) | BIT(LOSS_SUM),
                       BIT(BALANCE) | BIT(BALANCE_TOTAL) | BIT(LOSS_SUM)},
    [PL_OP_ALL_REDUCE] = {"all-reduce of gradients over replicas, of counts or of sums; the "
                          "subject says which",
                          PL_STREAM_COMMUNICATION,
                          SHARD_GRADIENTS | BIT(TOKEN_COUNT) | BIT(BALANCE) | BIT(DENSE_SQUARES) |
                              BIT(EXPERT_SQUARES) | BIT(LOSS_SUM),
                          SHARD_GRADIENTS | BIT(TOKEN_COUNT) | BIT(BALANCE) | BIT(DENSE_SQUARES) |
                              BIT(EXPERT_SQUARES) | BIT(LOSS_SUM)},
    [PL_OP_SCALE] = {"multiply the gradients by the scale: the one last 1/T", PL_STREAM_COMPUTE,
                     SHARD_GRADIENTS | BIT(TOKEN_COUNT), SHARD_GRADIENTS},
    [PL_OP_GRADIENT_NORM] = {"sums of squares of the gradients held", PL_STREAM_COMPUTE,
                             SHARD_GRADIENTS, SQUARES},
    [PL_OP_CLIP] = {"norm, clip coefficient and whether it is finite, from the reduced sums",
                    PL_STREAM_COMPUTE, SQUARES, BIT(CLIP)},
    [PL_OP_STEP] = {"optimizer update, if the norm is finite and T > 0", PL_STREAM_COMPUTE,
                    SHARD_GRADIENTS | MOMENTS | BIT(CLIP) | BIT(TOKEN_COUNT) | BIT(MASTER) |
                        BIT(PARAMETER) | BIT(IGNORED),
                    MOMENTS | BIT(MASTER) | BIT(PARAMETER) | BIT(IGNORED)},
    [PL_OP_CONTROL] = {"all-reduce of the flags stop, save, failed, save finished; the host learns "
                       "loss, T and norm; ends every program (on host in a world of one rank)",
                       PL_STREAM_COMMUNICATION, BIT(CLIP) | BIT(LOSS_SUM) | BIT(TOKEN_COUNT),
                       BIT(FLAGS)},
};

const pl_operation_facts *pl_operation_describe(pl_operation operation)
{
    return &facts[operation];
}

static void add_kinds(pl_text *text, pl_kind_set kinds)
{
    bool any = false;
    for (int kind = 0; kind < PL_BUFFER_KIND_COUNT; ++kind) {
        if (!(kinds >> kind & 1U)) continue;
        pl_text_add(text, "%s`%s`", any ? ", " : "", pl_buffer_kind_stem((pl_buffer_kind)kind));
        any = true;
    }
    if (!any) pl_text_add_string(text, "-");
}

void pl_operations_print(pl_text *text)
{
    pl_text_add_string(text, "| Operation | Stream | Reads | Writes | Meaning |\n"
                             "|---|---|---|---|---|\n");
    for (int i = 0; i < PL_OPERATION_COUNT; ++i) {
        pl_text_add(text, "| `%s` | %s | ", pl_operation_name((pl_operation)i),
                    pl_stream_name(facts[i].stream));
        add_kinds(text, facts[i].reads);
        pl_text_add_string(text, " | ");
        add_kinds(text, facts[i].writes);
        pl_text_add(text, " | %s |\n", facts[i].meaning);
    }
}
