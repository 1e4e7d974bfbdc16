/* The text form of plans: written and read back, and what reading refuses, with file, line and
 * column. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

static char *text_of(const pl_plan *plan)
{
    pl_text text = {0};
    pl_plan_write(&text, plan, -1);
    assert_ok(pl_text_status(&text));
    return text.bytes;
}

/* --- there and back --- */

static void expect_same_text(const pl_plan *plan)
{
    pl_plan read = {0};
    char *text = text_of(plan);
    assert_ok(pl_plan_read(&read, text, "written.plan"));
    char *again = text_of(&read);
    assert_string_equal(text, again);
    free(text);
    free(again);
    pl_plan_free(&read);
}

static void plans_come_back_as_they_were(void **state)
{
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < 250; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        pl_plan plan = {0};
        assert_ok(plan_case_build(&plan, &c, i % 5 == 0));
        if (i % 3 == 0) assert_ok(pl_plan_split_rank(&plan, plan.layout.world / 2));
        expect_same_text(&plan);
        pl_plan_free(&plan);
    }
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) {
        pl_plan plan = {0};
        assert_ok(plan_case_build(&plan, &plan_forced_cases()[i], false));
        expect_same_text(&plan);
        pl_plan_free(&plan);
    }
}

/* All flags with which an entry uses a buffer. */
static uint32_t flags_of(const pl_section *section, const pl_entry *entry, uint32_t buffer)
{
    uint32_t flags = 0;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (section->uses[entry->use_first + i].buffer == buffer)
            flags |= section->uses[entry->use_first + i].flags;
    return flags;
}

static void expect_same_uses(const pl_section *a, const pl_entry *x, const pl_section *b,
                             const pl_entry *y)
{
    for (uint32_t i = 0; i < (uint32_t)a->buffer_count; ++i)
        assert_int_equal(flags_of(a, x, i), flags_of(b, y, i));
}

/* What the text says of settings and buffers reaches the structures. */
static void what_is_read_is_what_was_built(void **state)
{
    pl_plan plan = {0}, read = {0};
    (void)state;
    assert_ok(plan_case_build(&plan, &plan_forced_cases()[9], false));
    plan.settings.balance_coefficient = 0.1; /* no binary fraction */
    plan.settings.clip = 1e-300;
    char *text = text_of(&plan);
    assert_ok(pl_plan_read(&read, text, "built.plan"));
    assert_true(pl_layout_equal(&plan.layout, &read.layout));
    assert_memory_equal(&plan.settings.shape, &read.settings.shape, sizeof plan.settings.shape);
    assert_true(read.settings.balance_coefficient == 0.1 && read.settings.clip == 1e-300);
    assert_int_equal(plan.section_count, read.section_count);
    for (size_t i = 0; i < plan.section_count; ++i) {
        const pl_section *a = &plan.sections[i], *b = &read.sections[i];
        assert_int_equal(a->buffer_count, b->buffer_count);
        for (size_t j = 0; j < a->buffer_count; ++j) {
            assert_int_equal(a->buffers[j].kind, b->buffers[j].kind);
            assert_int_equal(a->buffers[j].bytes, b->buffers[j].bytes);
        }
        assert_int_equal(a->entry_count, b->entry_count);
        for (size_t j = 0; j < a->entry_count; ++j) {
            assert_true(pl_entry_name_equal(&a->entries[j].name, &b->entries[j].name));
            expect_same_uses(a, &a->entries[j], b, &b->entries[j]);
            assert_int_equal(a->entries[j].elements, b->entries[j].elements);
        }
        assert_int_equal(a->wait_count, b->wait_count);
        assert_memory_equal(a->waits, b->waits, a->wait_count * sizeof *a->waits);
    }
    free(text);
    pl_plan_free(&plan);
    pl_plan_free(&read);
}

/* --- a small plan by hand --- */

#define MODEL                                                                                      \
    "model {\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 4, "             \
    "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"intermediate_size\": 4, "           \
    "\"vocab_size\": 8, \"max_position_embeddings\": 8}\n"

/* Reading asks for form, not for sense. Lines that cases change are numbered. */
static const char small[] =
    "pleat-plan 1\n"                                                        /* 1 */
    MODEL                                                                   /* 2 */
    "name tiny\n"                                                           /* 3 */
    "layout decoupled:world=4\n"                                            /* 4 */
    "policy reshard=never prefetch=none recompute=none accumulate=sharded " /* 5 */
    "dispatch=all-to-all routing=router\n"
    "precision compute=bf16 gather=bf16 gradient=fp32 master=fp32\n"                /* 6 */
    "shape sequence=8 micro_batch=2 intra_layer=1 rounds=3\n"                       /* 7 */
    "objective balance=none coefficient=0 optimizer=sgd clip=1.5\n"                 /* 8 */
    "frozen *norm*\n"                                                               /* 9 */
    "# a remark\n"                                                                  /* 10 */
    "section step ranks 0-2/2,1,3\n"                                                /* 11 */
    "buffer full.layer.0 gathered bf16 64\n"                                        /* 12 */
    "buffer in.0.mb0 exchange fp32 16*R\n"                                          /* 13 */
    "buffer param.layer.0 shard bf16 16 resident\n"                                 /* 14 */
    "entry 7 gather layer.0 round=0 pass=f stream=communication group=dense-shard " /* 15 */
    "bytes=64 wire=bf16 reads=param.layer.0 begins=full.layer.0\n"
    "entry 3 attention layer.0 round=0 mb=0 pass=f stream=compute waits=7,9 if=update " /* 16 */
    "flops=12*R scale=T*1/2 reads=full.layer.0 ends=full.layer.0\n"
    "end\n"; /* 17 */

/* The small plan with the first FROM replaced by TO. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(small, from);
    pl_text text = {0};
    if (!at) fail_msg("no '%s' in the small plan", from);
    pl_text_add_bytes(&text, small, (size_t)(at - small));
    pl_text_add_string(&text, to);
    pl_text_add_string(&text, at + strlen(from));
    assert_ok(pl_text_status(&text));
    return text.bytes;
}

static pl_status try_read(const char *text)
{
    pl_plan plan;
    pl_status status = pl_plan_read(&plan, text, "small.plan");
    if (status == PL_OK) pl_plan_free(&plan);
    return status;
}

static void the_small_plan_is_read(void **state)
{
    pl_plan plan = {0};
    (void)state;
    assert_ok(pl_plan_read(&plan, small, "small.plan"));
    assert_string_equal(plan.model.name, "tiny");
    assert_int_equal(plan.settings.shape.rounds, 3);
    assert_int_equal(plan.settings.optimizer, PL_OPTIMIZER_SGD);
    assert_int_equal(plan.section_count, 1);
    const pl_section *section = &plan.sections[0];
    assert_int_equal(pl_section_rank_count(section), 4);
    assert_int_equal(section->buffer_count, 3);
    assert_true(section->buffers[1].per_row && section->buffers[2].resident);
    const pl_entry *entry = &section->entries[1];
    assert_int_equal(entry->label, 3);
    assert_int_equal(section->waits[entry->wait_first], 0); /* the place of label 7 */
    assert_int_equal(section->waits[entry->wait_first + 1], PL_WAIT_MISSING);
    assert_int_equal(entry->rows, PL_ROWS_RECEIVED);
    assert_int_equal(entry->scale.tokens, 1);
    assert_int_equal(entry->scale.denominator, 2);
    assert_int_equal(entry->use_count, 1); /* read and ended in one use */
    assert_int_equal(section->uses[entry->use_first].flags, PL_USE_READ | PL_USE_END);
    pl_plan_free(&plan);
}

static void what_may_be_left_out(void **state)
{
    static const char *const optional[] = {"name tiny\n", "frozen *norm*\n", "# a remark\n"};
    (void)state;
    for (size_t i = 0; i < sizeof optional / sizeof *optional; ++i) {
        char *text = changed(optional[i], "");
        assert_ok(try_read(text));
        free(text);
    }
    char *text = changed("end\n", "end\n\n   \n# the end\n");
    assert_ok(try_read(text));
    free(text);
    text = changed("name tiny", "name tiny but mine");
    assert_ok(try_read(text));
    free(text);
}

/* --- wrong texts --- */

typedef struct wrong_text {
    const char *from, *to; /* what is changed in the small plan */
    const char *place;     /* line and column of the message */
    const char *words, *more;
} wrong_text;

static const wrong_text wrong_headers[] = {
    {"pleat-plan 1", "pleat-plan 2", ":1:1:", "pleat-plan 1", "first line"},
    {"pleat-plan 1\n", "", ":1:1:", "pleat-plan 1", "first line"},
    {"pleat-plan 1\n", "\npleat-plan 1\n", ":1:1:", "pleat-plan 1", "first line"},
    {"pleat-plan 1\n", "pleat-plan 1\r\n", ":1:1:", "pleat-plan 1", "first line"},
    {MODEL, "", ":10:1:", "no line 'model'", "first section"},
    {"layout decoupled:world=4\n", "", ":10:1:", "no line 'layout'", "first section"},
    {"llama", "lama", "", "lama", "llama"},
    {"\"vocab_size\": 8, ", "", "", "vocab_size", "missing"},
    {"model {", "model [", "", "small.plan", ""},
    {"model {", "modle {", ":2:1:", "'modle'", "header line"},
    {"name tiny", "nmae tiny", ":3:1:", "'nmae'", "did you mean 'name'"},
    {"name tiny", "name ", ":3:1:", "'name'", "1 to 63 letters"},
    {"policy reshard=never", "policy ", ":5:1:", "'policy' has 5 words", "must have 6"},
    {" master=fp32", "", ":6:1:", "'precision' has 3 words", "must have 4"},
    {" rounds=3", "", ":7:1:", "'shape' has 3 words", "must have 4"},
    {" clip=1.5", "", ":8:1:", "'objective' has 3 words", "must have 4"},
    {"prefetch=none", "reshard=never", ":5:22:", "reshard", "twice"},
    {"shape sequence=8", "policy sequence=8", ":7:1:", "policy", ""},
    {"frozen *norm*", "layout decoupled:world=4", ":9:1:", "second line 'layout'", ""},
    {"frozen *norm*", "name again", ":9:1:", "second line 'name'", ""},
    {"frozen *norm*\n", "frozen *\n", "", "frozen", "train"},
    {"layout decoupled:world=4", "layout decoupled:world=4,pp=2", "", "pp=2", "pp=1"},
    {"rounds=3", "rounds=1048576", "", "1048576 rounds", "would fit"},
    {"name tiny", "name aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     ":3:1:", "'name'", "63 letters"},
    {"layout decoupled:world=4", "layout decoupled:world=4,ep=3", ":4: in the line 'layout'",
     "ep=3", "would fit"},
    {"layout decoupled:world=4", "layout decopled:world=4", ":4: in the line 'layout'", "decopled",
     "decoupled"},
    {"layout decoupled:world=4", "layout decoupled:world=4\r", "", "", ""},
    {"layout decoupled:world=4", "layout decoupled: world=4", ":4:1:", "'layout'", "one notation"},
    {"layout decoupled:world=4", "layout decoupled:world=33554432", "in the header", "262144",
     "33554432"},
    {"reshard=never", "reshard=nevr", ":5:16:", "'nevr'", "did you mean 'never'"},
    {"reshard=never", "reshrd=never", ":5:8:", "reshrd=never", "reshard, prefetch"},
    {"prefetch=none", "prefetch", ":5:22:", "'prefetch'", "is no policy"},
    {"compute=bf16", "compute=bf15", ":6:19:", "'bf15'", "element type"},
    {"compute=bf16", "compue=bf16", ":6:11:", "compue", "compute, gather"},
    {"sequence=8", "sequence=0", ":7:16:", "0 is outside", "1 to 2147483647"},
    {"sequence=8", "sequence=8x", ":7:16:", "'8x'", "whole number"},
    {"sequence=8", "sequence=9223372036854775808", ":7:16:", "9223372036854775808", "whole number"},
    {"micro_batch=2", "micro_batch=1048577", ":7:30:", "1048577 is outside", "1048576"},
    {"intra_layer=1", "intra_layer=-1", ":7:44:", "-1 is outside", "1 to"},
    {"rounds=3", "rounds=", ":7:53:", "''", "whole number"},
    {"rounds=3", "round=3", ":7:46:", "round=3", "no part of the shape"},
    {"balance=none", "balance=nun", ":8:19:", "'nun'", "none"},
    {"optimizer=sgd", "optimizer=adam", ":8:48:", "'adam'", "adamw"},
    {"clip=1.5", "clip=-1", ":8:57:", "'-1'", "0 or more"},
    {"clip=1.5", "clip=nan", ":8:57:", "'nan'", "0 or more"},
    {"clip=1.5", "clip=1e999", ":8:57:", "'1e999'", "0 or more"},
    {"coefficient=0", "coeficient=0", ":8:24:", "coeficient", "no part of the objective"},
    {"frozen *norm*", "frozen", ":9:1:", "'frozen'", "one pattern"},
    {"frozen *norm*", "frozen *norm* *head*", ":9:1:", "'frozen'", "one pattern"},
    {"frozen *norm*", "frozen *nrom*", ":11: in the header", "*nrom*", "'*norm*'"},
    {"frozen *norm*", "keep_fp32 experts", ":11: in the header", "keep_fp32", "experts"},
    {"frozen *norm*", "entry 3", ":9:1:", "'entry'", "header line"},
};

static const wrong_text wrong_sections[] = {
    {"section step", "sektion step", ":11:1:", "'sektion'", "header line"},
    {"section step", "section sept", ":11:9:", "'sept'", "did you mean 'step'"},
    {"section step ranks", "section step rank", ":11:1:", "section PROGRAM ranks LIST", ""},
    {"section step ranks 0-2/2,1,3", "section step", ":11:1:", "section PROGRAM ranks LIST", ""},
    {"0-2/2,1,3", "0-2/2,1,3 4", ":11:1:", "section PROGRAM ranks LIST", ""},
    {"0-2/2,1,3", "0-2/2,1", ":17:1:", "rank 3 has no step section", ""},
    {"0-2/2,1,3", "0-2,1,3", ":11:24:", "rank 1 has a step section already", "line 11"},
    {"0-2/2,1,3", "0-3,3", ":11:24:", "rank 3 has a step section already", "line 11"},
    {"0-2/2,1,3", "0-4", ":11:22:", "4 is outside 0 to 3", ""},
    {"0-2/2,1,3", "4", ":11:20:", "4 is outside 0 to 3", ""},
    {"0-2/2,1,3", "3-0", ":11:22:", "0 is outside 3 to 3", ""},
    {"0-2/2,1,3", "0-3/2", ":11:20:", "0-3/2", "does not end on a rank"},
    {"0-2/2,1,3", "0-2/0", ":11:24:", "0 is outside 1 to 4", ""},
    {"0-2/2,1,3", "0-2/2,,1,3", ":11:26:", "''", "whole number"},
    {"0-2/2,1,3", "-1-3", ":11:20:", "''", "whole number"},
    {"0-2/2,1,3", "0..3", ":11:20:", "'0..3'", "whole number"},
    {"end\n", "end\nsection step ranks 2\nend\n", ":18:20:", "rank 2 has a step section already",
     "line 11"},
    {"end\n", "end\nsection start ranks 0\nend\n", ":19:1:", "rank 1 has no start section", ""},
    {"end\n", "end\nname again\n", ":18:1:", "'name' after the header", "section"},
    {"end\n", "end\nmodel {}\n", ":18:1:", "'model' after the header", "section"},
    {"end\n", "section step ranks 0\nend\n", ":17:1:", "'section'", "line of a section"},
    {"end\n", "end now\n", ":17:1:", "'end'", "line of a section"},
    {"end\n", "end\r\n", ":17:1:", "line of a section", "end"},
    {"end\n", "", ":16:1:", "ends inside a section", "no line 'end'"},
    {"section step ranks 0-2/2,1,3\n", "", ":11:1:", "'buffer'", "header line"},
};

static const wrong_text wrong_buffers[] = {
    {"buffer full", "bufer full", ":12:1:", "'bufer'", "did you mean 'buffer'"},
    {"buffer full.layer.0", "buffer ful.layer.0", ":12:8:", "'ful.layer.0'", "'full'"},
    {"buffer full.layer.0", "buffer full.layer", ":12:8:", "'full.layer'", "is no buffer"},
    {"buffer full.layer.0", "buffer full.tokens", ":12:8:", "'full.tokens'", "is no buffer"},
    {"buffer full.layer.0", "buffer full.layer.-1", ":12:8:", "'full.layer.-1'", "is no buffer"},
    {"buffer full.layer.0", "buffer full.layer.99999999999", ":12:8:", "99999999999",
     "is no buffer"},
    {"buffer in.0.mb0", "buffer in.0", ":13:8:", "'in.0'", "micro-batch"},
    {"buffer in.0.mb0", "buffer in.000000000000000000000.mb0", ":13:8:", "000.mb0'",
     "is no buffer"},
    {"buffer in.0.mb0", "buffer param.layer.0", ":14:8:", "param.layer.0", "twice"},
    {"gathered bf16 64", "gatherd bf16 64", ":12:21:", "'gatherd'", "did you mean 'gathered'"},
    {"gathered bf16 64", "gathered bf61 64", ":12:30:", "'bf61'", "element type"},
    {"gathered bf16 64", "gathered bf16 -1", ":12:35:", "-1 is outside 0 to", ""},
    {"gathered bf16 64", "gathered bf16 64*Q", ":12:35:", "'64*Q'", "whole number"},
    {"gathered bf16 64", "gathered bf16", ":12:1:", "buffer NAME CLASS TYPE BYTES", ""},
    {"gathered bf16 64", "gathered bf16 64 resdent", ":12:38:", "'resdent'", "'resident'"},
    {"gathered bf16 64", "gathered bf16 64 resident x", ":12:1:", "buffer NAME CLASS TYPE BYTES",
     ""},
};

static const wrong_text wrong_entries[] = {
    {"entry 7", "entri 7", ":15:1:", "'entri'", "did you mean 'entry'"},
    {"entry 3 attention", "entry 7 attention", ":17:1:", "two entries", "number 7"},
    {"entry 7 gather", "entry x gather", ":15:7:", "'x'", "whole number"},
    {"entry 7 gather", "entry -1 gather", ":15:7:", "-1 is outside", ""},
    {"entry 7 gather", "entry 2147483648 gather", ":15:7:", "2147483648 is outside", ""},
    {"7 gather", "7 gahter", ":15:9:", "'gahter'", "did you mean 'gather'"},
    {"gather layer.0 round", "gather layer round", ":15:16:", "'layer'", "no subject"},
    {"gather layer.0 round", "gather head.0 round", ":15:16:", "'head.0'", "no subject"},
    {"gather layer.0 round", "gather layr.0 round", ":15:16:", "'layr.0'", "no subject"},
    {"round=0 pass=f stream=comm", "rund=0 pass=f stream=comm", ":15:24:", "'rund'",
     "did you mean 'round'"},
    {"round=0 pass=f stream=comm", "round=-1 pass=f stream=comm", ":15:30:", "-1 is outside", ""},
    {"pass=f stream=comm", "pass=q stream=comm", ":15:37:", "'q'", "is no pass"},
    {"stream=communication", "stream=comunication", ":15:46:", "'comunication'",
     "did you mean 'communication'"},
    {"stream=communication ", "", ":15:1:", "entry 7 has no stream=", ""},
    {"group=dense-shard", "group=dense-shrad", ":15:66:", "'dense-shrad'",
     "did you mean 'dense-shard'"},
    {"group=dense-shard", "group=none", "", "", ""}, /* reads: as if there were none */
    {"bytes=64 wire", "bytes=-64 wire", ":15:84:", "-64 is outside", ""},
    {"wire=bf16", "wire=b16", ":15:92:", "'b16'", "element type"},
    {"wire=bf16", "wire=bf16 reduction=summ", ":15:107:", "'summ'", "did you mean 'sum'"},
    {"reads=param.layer.0", "reads=parm.layer.0", ":15:103:", "'parm.layer.0'", "'param'"},
    {"reads=param.layer.0", "reads=param.layer.1", ":15:103:", "buffer param.layer.1",
     "in this section"},
    {"reads=param.layer.0", "reads=param.layer.0,", ":15:117:", "''", "is no buffer"},
    {"begins=full.layer.0\n", "beings=full.layer.0\n", ":15:117:", "'beings'",
     "did you mean 'begins'"},
    {"wire=bf16", "wire=bf16 wire=bf16", ":15:97:", "'wire'", "twice"},
    {"waits=7,9", "waits=7,,9", ":16:70:", "''", "whole number"},
    {"waits=7,9", "waits=-7", ":16:68:", "-7 is outside", ""},
    {"waits=7,9", "waits=first", ":16:68:", "'first'", "whole number"},
    {"if=update", "if=ever", ":16:75:", "'ever'", "update"},
    {"flops=12*R", "flops=12*C", ":16:88:", "'12*C'", "whole number"},
    {"scale=T*1/2", "scale=T*1/0", ":16:99:", "'T*1/0'", "is no scale"},
    {"scale=T*1/2", "scale=1/2*Q", ":16:99:", "'1/2*Q'", "is no scale"},
    {"scale=T*1/2", "scale=-1", ":16:99:", "'-1'", "is no scale"},
    {"scale=T*1/2", "scale=1/99999999999999999", ":16:99:", "is no scale", ""},
    {"mb=0 pass=f stream=compute", "mb= pass=f stream=compute", ":16:38:", "''", "whole number"},
    {"scale=T*1/2", "elements", ":16:93:", "'elements'", "KEY=VALUE"},
    {"entry 3 attention layer.0", "entry 3 attention", ":16:19:", "'round=0'", "no subject"},
};

/* Cases whose words are empty must be read; all others are refused with place and words. */
static size_t expect_refused(const wrong_text *list, size_t count)
{
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) {
        char *text = changed(list[i].from, list[i].to);
        pl_error_clear();
        pl_status status = try_read(text);
        const char *found = pl_error_text();
        bool reads = !*list[i].words && !*list[i].more;
        bool right = reads ? status == PL_OK : status == PL_BAD_INPUT || status == PL_UNSUPPORTED;
        right = right && (reads || (strstr(found, "small.plan") && strstr(found, list[i].place) &&
                                    strstr(found, list[i].words) && strstr(found, list[i].more)));
        if (!right)
            print_error("'%s' for '%s': %s: %s\n", list[i].to, list[i].from, pl_status_name(status),
                        found);
        wrong += !right;
        free(text);
    }
    assert_int_equal(wrong, 0);
    return count;
}

#define REFUSED(list) expect_refused(list, sizeof(list) / sizeof *(list))

static void wrong_texts_are_refused_with_their_place(void **state)
{
    size_t count = 0;
    (void)state;
    count += REFUSED(wrong_headers);
    count += REFUSED(wrong_sections);
    count += REFUSED(wrong_buffers);
    count += REFUSED(wrong_entries);
    assert_true(count >= 100);
}

static void long_lines_are_bounded(void **state)
{
    pl_text text = {0};
    (void)state;
    pl_text_add_string(&text, "pleat-plan 1\nfrozen");
    for (int i = 0; i < 63; ++i) pl_text_add_string(&text, " a");
    assert_fails(PL_BAD_INPUT, try_read(pl_text_string(&text)), ":2:1:", "'frozen'");
    pl_text_add_string(&text, " a");
    assert_fails(PL_BAD_INPUT, try_read(pl_text_string(&text)), ":2:134:", "more than 64 words");
    pl_text_clear(&text);
    pl_text_add_string(&text, "pleat-plan 1\n");
    for (int i = 0; i < 1 << 20; ++i) pl_text_add_string(&text, "x");
    assert_fails(PL_BAD_INPUT, try_read(pl_text_string(&text)), ":2:1:", "header line");
    pl_text_free(&text);
}

/* The small plan up to its entries, then one entry with LIST. */
static char *with_list(const char *key, const char *item, int count)
{
    pl_text text = {0};
    char *begin = changed("entry 7", "@");
    *strchr(begin, '@') = '\0';
    pl_text_add(&text, "%sentry 0 step parameters stream=compute %s=%s", begin, key, item);
    for (int i = 1; i < count; ++i) pl_text_add(&text, ",%s", item);
    pl_text_add_string(&text, "\nend\n");
    assert_ok(pl_text_status(&text));
    free(begin);
    return text.bytes;
}

static void long_lists_are_read(void **state)
{
    pl_plan plan = {0};
    (void)state;
    char *text = with_list("waits", "0", 20000);
    assert_ok(pl_plan_read(&plan, text, "long.plan"));
    assert_int_equal(plan.sections[0].entries[0].wait_count, 20000);
    pl_plan_free(&plan);
    free(text);
    text = with_list("reads", "full.layer.0", 1);
    assert_ok(try_read(text));
    free(text);
    text = with_list("reads", "full.layer.0", 2);
    assert_fails(PL_BAD_INPUT, try_read(text), ":15:59:", "'full.layer.0'", "twice");
    free(text);
}

static void nothing_is_no_plan(void **state)
{
    (void)state;
    assert_fails(PL_BAD_INPUT, try_read(""), "small.plan:0:1:", "pleat-plan 1");
    assert_fails(PL_BAD_INPUT, try_read("\n"), "small.plan:1:1:", "pleat-plan 1");
    assert_fails(PL_BAD_INPUT, try_read("pleat-plan 1"), "small.plan:1:1:", "no section");
    assert_fails(PL_BAD_INPUT, try_read("pleat-plan 1\n\n"), "small.plan:2:1:", "no section");
}

/* --- damage of any kind --- */

/* A plan that reads must write and read again; else it is refused. */
static bool reads_or_is_refused(const char *text)
{
    pl_plan plan;
    pl_error_clear();
    pl_status status = pl_plan_read(&plan, text, "damaged.plan");
    if (status == PL_OK) {
        expect_same_text(&plan);
        pl_plan_free(&plan);
        return true;
    }
    if (status != PL_BAD_INPUT && status != PL_UNSUPPORTED)
        fail_msg("%s: %s", pl_status_name(status), pl_error_text());
    assert_true(*pl_error_text() != '\0');
    return false;
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    char *text = changed("", "");
    for (size_t length = strlen(text); length-- > 0;) {
        text[length] = '\0';                      /* so is a NUL in the middle of a file */
        bool whole = length == strlen(small) - 1; /* only the last line's end is missing */
        assert_int_equal(reads_or_is_refused(text), whole);
    }
    free(text);
}

static void changed_bytes_do_no_harm(void **state)
{
    static const char likely[] =
        "0123456789 ,.=-/*RCT\n\r\t\"{}#abcdefghilmnoprstuvwx_\x01\x7f\xff";
    static const plan_case c = {
        .name = "random", .model = "moe-tied", .layout = "legacy:world=3", .keep_fp32 = {"q_norm"}};
    uint64_t seed = 17;
    int read = 0;
    pl_plan plan = {0};
    (void)state;
    assert_ok(plan_case_build(&plan, &c, false));
    char *built = text_of(&plan), *by_hand = changed("", "");
    for (int i = 0; i < 3000; ++i) {
        char *text = i % 3 ? by_hand : built;
        size_t length = strlen(text), at = (size_t)plan_case_draw(&seed, (int)length);
        char kept = text[at];
        text[at] = likely[plan_case_draw(&seed, sizeof likely - 1)];
        read += reads_or_is_refused(text);
        text[at] = kept;
    }
    assert_in_range(read, 50, 2500);
    free(built);
    free(by_hand);
    pl_plan_free(&plan);
}

/* --- words --- */

static void scales_print_and_parse(void **state)
{
    static const struct {
        pl_scale scale;
        const char *text;
    } cases[] = {{{1, 1, 0}, "1"},      {{1, 2, 0}, "1/2"},   {{1, 1, -1}, "1/T"},
                 {{3, 4, -1}, "3/4*T"}, {{1, 8, 1}, "T*1/8"}, {{0, 1, 0}, "0"}};
    pl_scale scale;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_text text = {0};
        pl_scale_print(&text, cases[i].scale);
        assert_true(pl_scale_parse(&scale, cases[i].text));
        assert_memory_equal(&scale, &cases[i].scale, sizeof scale);
        assert_true(pl_scale_parse(&scale, pl_text_string(&text)));
        assert_memory_equal(&scale, &cases[i].scale, sizeof scale);
        pl_text_free(&text);
    }
    static const char *const wrong[] = {"", "T", "1/", "/2", "1/2/3", "1/T*2", "x", "1/-2", "T*"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
        assert_false(pl_scale_parse(&scale, wrong[i]));
}

static void every_buffer_prints_and_parses(void **state)
{
    (void)state;
    for (int kind = 0; kind < PL_BUFFER_KIND_COUNT; ++kind) {
        pl_buffer_scope scope = pl_buffer_kind_scope((pl_buffer_kind)kind);
        for (int subject = 0; subject <= PL_SUBJECT_HEAD; ++subject) {
            bool layered = subject == PL_SUBJECT_LAYER || subject == PL_SUBJECT_EXPERTS;
            pl_buffer buffer = {.kind = (uint8_t)kind, .layer = -1, .micro_batch = -1}, read;
            if (scope == PL_SCOPE_PART) buffer.subject = (uint8_t)subject;
            if (scope == PL_SCOPE_PART ? layered : scope == PL_SCOPE_LAYER_MICRO_BATCH)
                buffer.layer = 12;
            if (scope == PL_SCOPE_LAYER_MICRO_BATCH || scope == PL_SCOPE_MICRO_BATCH)
                buffer.micro_batch = 345;
            pl_text text = {0};
            pl_buffer_print(&text, &buffer);
            assert_true(pl_buffer_parse(&read, pl_text_string(&text)));
            assert_int_equal(read.kind, buffer.kind);
            assert_int_equal(read.subject, buffer.subject);
            assert_int_equal(read.layer, buffer.layer);
            assert_int_equal(read.micro_batch, buffer.micro_batch);
            pl_text_add_string(&text, "x");
            assert_false(pl_buffer_parse(&read, pl_text_string(&text)));
            pl_text_free(&text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_back_as_they_were),
        cmocka_unit_test(what_is_read_is_what_was_built),
        cmocka_unit_test(the_small_plan_is_read),
        cmocka_unit_test(what_may_be_left_out),
        cmocka_unit_test(wrong_texts_are_refused_with_their_place),
        cmocka_unit_test(long_lines_are_bounded),
        cmocka_unit_test(long_lists_are_read),
        cmocka_unit_test(nothing_is_no_plan),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(changed_bytes_do_no_harm),
        cmocka_unit_test(scales_print_and_parse),
        cmocka_unit_test(every_buffer_prints_and_parses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
