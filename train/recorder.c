#include "train/recorder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/memory.h"
#include "train/old_log.h"
#include "train/run_folder.h"

/* Seconds before a bar is worth drawing, between two bars, and between two lines. */
static const double bar_after = 2, bar_every = 0.1, line_every = 1;

enum { TRAIN, BALANCE, NORM, RATE, SPEED, VALIDATION, TAGS };

static const pl_recorder_tag tags[TAGS] = {
    [TRAIN] = {"loss/train", "`loss` of a step"},
    [BALANCE] = {"loss/balance", "its `balance_loss`"},
    [NORM] = {"norm", "its `norm`"},
    [RATE] = {"lr", "its `lr`"},
    [SPEED] = {"tokens_per_second", "its `tokens_per_second`"},
    [VALIDATION] = {"loss/validation", "`loss` of an evaluation"},
};

const pl_recorder_tag *pl_recorder_tags(int *count)
{
    *count = TAGS;
    return tags;
}

double pl_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double pl_wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- lines --- */

/* Hand the line that was just made, with STATUS, to the log and to readers of JSON. */
static pl_status keep_line(pl_recorder *recorder, pl_status status)
{
    PL_TRY(status);
    pl_console_object(recorder->console, pl_text_string(&recorder->line));
    return pl_append_file_add(&recorder->log, pl_text_string(&recorder->line),
                              recorder->line.length);
}

static pl_text *new_line(pl_recorder *recorder)
{
    pl_text_clear(&recorder->line);
    return &recorder->line;
}

/* --- opening and closing --- */

static pl_status add_point(pl_curve *curve, int64_t step, double loss)
{
    PL_TRY(pl_grow(&curve->points, &curve->capacity, curve->count + 1, sizeof *curve->points,
                   "the losses of a run"));
    curve->points[curve->count++] = (pl_plot_point){(double)step, loss};
    return PL_OK;
}

static pl_status continue_log(pl_recorder *recorder, const char *file)
{
    pl_old_log old;
    PL_TRY(pl_old_log_read(&old, file, recorder->resumed));
    pl_status status = PL_OK;
    for (size_t i = 0; status == PL_OK && i < old.count; ++i)
        status = add_point(old.losses[i].held_out ? &recorder->validation : &recorder->train,
                           old.losses[i].step, old.losses[i].loss);
    if (status == PL_OK)
        status = pl_write_whole_file(file, pl_text_string(&old.kept), old.kept.length);
    if (status == PL_OK) status = pl_append_file_continue(&recorder->log, file);
    pl_old_log_free(&old);
    return status;
}

/* Named after the second, or after the first second later that no earlier file of the run has. */
static pl_status find_event_file(pl_text *path, const char *folder, int64_t second)
{
    char name[64];
    do {
        pl_text_clear(path);
        snprintf(name, sizeof name, "events.out.tfevents.%" PRId64 ".pleat", second++);
        pl_run_folder_path(path, folder, name);
        PL_TRY(pl_text_status(path));
    } while (access(pl_text_string(path), F_OK) == 0);
    return PL_OK;
}

static pl_status open_files(pl_recorder *recorder, const char *folder, bool goes_on)
{
    pl_text log = {0}, events = {0};
    double now = pl_wall_time();
    pl_run_folder_path(&log, folder, PL_RUN_FOLDER_LOG);
    pl_status status = pl_text_status(&log);
    if (status == PL_OK) status = find_event_file(&events, folder, (int64_t)now);
    if (status == PL_OK)
        status = goes_on ? continue_log(recorder, pl_text_string(&log))
                         : pl_append_file_open(&recorder->log, pl_text_string(&log));
    if (status == PL_OK)
        status = pl_event_file_open(&recorder->events, pl_text_string(&events), now);
    pl_text_free(&log);
    pl_text_free(&events);
    return status;
}

static void free_memory(pl_recorder *recorder)
{
    pl_text_free(&recorder->line);
    pl_text_free(&recorder->words);
    pl_free(recorder->train.points);
    pl_free(recorder->validation.points);
    recorder->train = recorder->validation = (pl_curve){0};
}

pl_status pl_recorder_close(pl_recorder *recorder)
{
    free_memory(recorder);
    pl_status log = pl_append_file_close(&recorder->log);
    pl_status events = pl_event_file_close(&recorder->events);
    return log != PL_OK ? log : events;
}

pl_status pl_recorder_open(pl_recorder *out, pl_console *console, const char *folder,
                           const pl_run_facts *facts, int64_t steps)
{
    pl_recorder recorder = {.console = console, .steps = steps, .began = pl_now()};
    recorder.said = recorder.began;
    recorder.resumed = facts->from ? facts->resumed : 0;
    pl_status status = open_files(&recorder, folder, facts->from != NULL);
    if (status == PL_OK)
        status = keep_line(&recorder, pl_run_log_begin(new_line(&recorder), facts));
    if (status == PL_OK) {
        *out = recorder;
        return PL_OK;
    }
    char words[1024]; /* closing may fail too, and say so */
    snprintf(words, sizeof words, "%s", pl_error_text());
    if (pl_recorder_close(&recorder) != PL_OK) pl_error_set(words);
    return status;
}

/* --- steps --- */

static void add_duration(pl_text *text, double seconds)
{
    int64_t whole = seconds < 1e9 ? (int64_t)(seconds + 0.5) : 0;
    if (whole >= 3600)
        pl_text_add(text, "%" PRId64 ":%02d:%02d", whole / 3600, (int)(whole / 60 % 60),
                    (int)(whole % 60));
    else
        pl_text_add(text, "%d:%02d", (int)(whole / 60), (int)(whole % 60));
}

/* "step 12/200  0:42 left  loss 3.21  balance 0.0011  norm 0.92  lr 1.0e-03  12,345 tokens/s" */
static void describe_step(pl_recorder *recorder, const pl_step_record *record)
{
    pl_text *words = &recorder->words;
    char rate[32];
    int64_t left = recorder->steps - record->step;
    pl_text_clear(words);
    pl_text_add(words, "step %" PRId64 "/%" PRId64, record->step, recorder->steps);
    if (left > 0) {
        pl_text_add_string(words, "  ");
        add_duration(words, (pl_now() - recorder->began) /
                                (double)(record->step - recorder->resumed) * (double)left);
        pl_text_add_string(words, " left");
    }
    pl_text_add(words, "  loss %.4f", record->loss);
    if (record->balance_loss != 0) pl_text_add(words, "  balance %.3g", record->balance_loss);
    pl_text_add(words, "  norm %.3g  lr %.2e  %s tokens/s", record->norm, record->lr,
                pl_format_thousands(rate, (int64_t)record->tokens_per_second));
}

static void show_step(pl_recorder *recorder, const pl_step_record *record)
{
    double now = pl_now();
    bool last = record->step == recorder->steps;
    bool line = last || record->step == recorder->resumed + 1 ||
                (!recorder->console->terminal && now - recorder->said >= line_every);
    bool bar = recorder->console->terminal && !last && now - recorder->began >= bar_after &&
               now - recorder->drawn >= bar_every;
    if (!line && !bar) return;
    describe_step(recorder, record);
    if (line) {
        pl_console_say(recorder->console, "%s", pl_text_string(&recorder->words));
        recorder->said = now;
    }
    if (bar) {
        pl_console_bar(recorder->console, (double)record->step / (double)recorder->steps,
                       pl_text_string(&recorder->words));
        recorder->drawn = now;
    }
}

pl_status pl_recorder_step(pl_recorder *recorder, const pl_step_record *record, int64_t tokens_read)
{
    const pl_scalar scalars[] = {{tags[TRAIN].name, record->loss},
                                 {tags[BALANCE].name, record->balance_loss},
                                 {tags[NORM].name, record->norm},
                                 {tags[RATE].name, record->lr},
                                 {tags[SPEED].name, record->tokens_per_second}};
    recorder->step_seconds += record->seconds;
    recorder->tokens += (double)tokens_read;
    PL_TRY(add_point(&recorder->train, record->step, record->loss));
    PL_TRY(keep_line(recorder, pl_run_log_step(new_line(recorder), record)));
    PL_TRY(pl_event_file_scalars(&recorder->events, pl_wall_time(), record->step, scalars,
                                 sizeof scalars / sizeof *scalars));
    show_step(recorder, record);
    return PL_OK;
}

pl_status pl_recorder_evaluation(pl_recorder *recorder, const pl_evaluation_record *record)
{
    const pl_scalar scalar = {tags[VALIDATION].name, record->loss};
    PL_TRY(add_point(&recorder->validation, record->step, record->loss));
    PL_TRY(keep_line(recorder, pl_run_log_evaluation(new_line(recorder), record)));
    PL_TRY(pl_event_file_scalars(&recorder->events, pl_wall_time(), record->step, &scalar, 1));
    pl_console_say(recorder->console,
                   "step %" PRId64 "  validation loss %.4f over %" PRId64 " windows (%.1f s)",
                   record->step, record->loss, record->windows, record->seconds);
    return PL_OK;
}

pl_status pl_recorder_note(pl_recorder *recorder, int64_t step, const char *words)
{
    pl_console_say(recorder->console, "step %" PRId64 ": %s", step, words);
    return keep_line(recorder, pl_run_log_note(new_line(recorder), step, words));
}

/* --- the end --- */

static double last_of(const pl_curve *curve)
{
    return curve->count ? curve->points[curve->count - 1].y : NAN;
}

double pl_recorder_loss(const pl_recorder *recorder) { return last_of(&recorder->train); }

double pl_recorder_validation_loss(const pl_recorder *recorder)
{
    return last_of(&recorder->validation);
}

static double rate_of(const pl_recorder *recorder)
{
    return recorder->step_seconds > 0 ? recorder->tokens / recorder->step_seconds : 0;
}

pl_status pl_recorder_end(pl_recorder *recorder, const pl_end_record *record)
{
    pl_end_record whole = *record;
    whole.loss = pl_recorder_loss(recorder);
    whole.validation_loss = pl_recorder_validation_loss(recorder);
    whole.seconds = pl_now() - recorder->began;
    whole.tokens_per_second = rate_of(recorder);
    return keep_line(recorder, pl_run_log_end(new_line(recorder), &whole));
}

pl_status pl_recorder_sample(pl_recorder *recorder, const char *sample)
{
    return keep_line(recorder, pl_run_log_sample(new_line(recorder), sample));
}

pl_status pl_recorder_summary(pl_recorder *recorder, const char *folder, double entropy)
{
    const pl_plot_series series[] = {
        {recorder->train.points, (int64_t)recorder->train.count, '*', true, "loss"},
        {recorder->validation.points, (int64_t)recorder->validation.count, 'o', false,
         "validation loss"}};
    pl_text text = {0};
    char rate[32];
    pl_text_add_string(&text, "\n");
    pl_plot_draw(&text, series, recorder->validation.count ? 2 : 1, "step ");
    pl_text_add(&text, "\n%-10s %.4f", "loss", pl_recorder_loss(recorder));
    if (recorder->validation.count)
        pl_text_add(&text, ", validation %.4f", pl_recorder_validation_loss(recorder));
    if (entropy > 0)
        pl_text_add(&text, "\n%-10s %.3f of %.4f, the loss of tokens by frequency alone", "that is",
                    pl_recorder_loss(recorder) / entropy, entropy);
    pl_text_add(&text, "\n%-10s ", "time");
    add_duration(&text, pl_now() - recorder->began);
    pl_text_add(&text, ", %s tokens/s in steps\n",
                pl_format_thousands(rate, (int64_t)rate_of(recorder)));
    pl_text_add(&text, "%-10s %s\n", "folder", folder);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) pl_console_show(recorder->console, pl_text_string(&text));
    pl_text_free(&text);
    return status;
}
