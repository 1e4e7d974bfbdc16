/* pleat-train devices: what can compute here, and what cannot and why. */
#include <jansson.h>
#include <string.h>

#include "train/backends.h"
#include "train/command.h"
#include "train/sampler.h"

enum { JSON, OPTIONS };

static const pl_option options[OPTIONS] = {{"--json", NULL, "print JSON", false}};

static const pl_command_usage devices_usage = {
    .program = "pleat-train",
    .command = "devices",
    .forms = "[--json]",
    .about = "Says which backends can compute on this machine, with what they found, and why the\n"
             "others cannot. The word in front is what 'backend' of a run file takes.",
    .examples = "pleat-train devices",
    .options = options,
    .option_count = OPTIONS};

typedef struct found {
    const char *name;
    bool usable;
    pl_text words; /* owned */
} found;

static void look(found *f, const char *name, pl_status status, pl_backend *backend)
{
    f->name = name;
    f->usable = status == PL_OK;
    pl_text_add_string(&f->words,
                       f->usable ? backend->functions->describe(backend) : pl_error_text());
    if (f->usable) pl_backends_close(backend);
}

static void add_table(pl_text *text, const found *list, int count)
{
    for (int i = 0; i < count; ++i)
        pl_text_add(text, "%-6s%s%s\n", list[i].name,
                    list[i].usable ? "" : "cannot be used: ", pl_text_string(&list[i].words));
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

static pl_status add_json(pl_text *text, const found *list, int count)
{
    json_t *devices = json_array();
    int failed = 0;
    for (int i = 0; i < count; ++i) {
        json_t *device = json_object();
        pl_text shown = {0}; /* a path may be no UTF-8 */
        pl_text_add_shown(&shown, pl_text_string(&list[i].words), list[i].words.length);
        failed |= shown.out_of_memory;
        failed |= json_object_set_new(device, "name", json_string(list[i].name));
        failed |= json_object_set_new(device, "usable", json_boolean(list[i].usable));
        failed |= json_object_set_new(device, list[i].usable ? "description" : "why",
                                      json_string(pl_text_string(&shown)));
        failed |= json_array_append_new(devices, device);
        pl_text_free(&shown);
    }
    json_t *top = json_pack("{s:o}", "devices", devices);
    failed |= json_dump_callback(top, add_piece, text, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(top);
    pl_text_add_string(text, "\n");
    return failed ? PL_FAIL(PL_NO_MEMORY, "out of memory while writing JSON") : PL_OK;
}

static pl_status take(void *context, int option, const char *value)
{
    bool *json = context;
    if (option < 0) return pl_command_refuse(&devices_usage, "no word is meant: ", value);
    *json = true;
    return PL_OK;
}

static pl_status show(bool json)
{
    found list[2];
    pl_backend *cpu = NULL, *cuda = NULL;
    pl_text text = {0};
    memset(list, 0, sizeof list);
    pl_status opened = pl_backends_open_cpu(&cpu, 0);
    look(&list[0], "cpu", opened, cpu);
    opened = pl_backends_open_cuda(&cuda);
    look(&list[1], "cuda", opened, cuda);
    pl_status status = PL_OK;
    if (json)
        status = add_json(&text, list, 2);
    else
        add_table(&text, list, 2);
    for (int i = 0; i < 2; ++i) {
        if (status == PL_OK) status = pl_text_status(&list[i].words);
        pl_text_free(&list[i].words);
    }
    if (status == PL_OK) return pl_command_print(&text);
    pl_text_free(&text);
    return status;
}

pl_status pl_command_devices(const pl_program_facts *program, int count, char **arguments)
{
    bool help = false, json = false;
    (void)program;
    PL_TRY(pl_arguments_parse(&help, &devices_usage, count, arguments, take, &json));
    if (help) return pl_command_help(&devices_usage);
    return show(json);
}
