/* Errors are values.
 *
 * A function that can fail returns a pl_status and leaves its out parameters untouched on
 * failure. The first function to notice says the whole story once, in words for the person at
 * the keyboard (which file, line, key, rank or tensor; what was found; what would be right):
 *
 *     if (world % pp != 0) return PL_FAIL(PL_BAD_INPUT, "world=%d is not divisible by pp=%d", ...);
 *
 * Callers pass the failure on with PL_TRY or PL_TRY_TO, and add what they were doing with
 * pl_error_context() where that helps: each context becomes a line of its own, innermost first.
 * The message and its context belong to the calling thread, so ranks that are threads do not mix.
 */
#ifndef PL_COMMON_STATUS_H
#define PL_COMMON_STATUS_H

#ifdef __cplusplus /* .cu files include these headers */
extern "C" {
#endif

/* clang can mark a type, GCC only functions: under clang a dropped status does not compile. */
#ifdef __clang__
#define PL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define PL_MUST_CHECK
#endif

typedef enum PL_MUST_CHECK pl_status {
    PL_OK = 0,
    PL_CHECK_FAILED, /* a proof or comparison came out negative: exit status 1 */
    PL_BAD_INPUT,    /* bad usage, file, layout, model or plan text: exit status 2 */
    PL_UNSUPPORTED,  /* well-formed, but not something this build or version does: 2 */
    PL_NO_MEMORY,    /* an allocation failed: 3 */
    PL_IO_FAILED,    /* reading, writing or syncing failed: 3 */
    PL_PEER_FAILED,  /* another rank failed or never came: 3 */
    PL_TIMED_OUT,    /* a deadline passed on this rank: 3 */
    PL_RUN_FAILED,   /* a run came to nothing for what it met on its way: 3 */
    PL_INTERNAL      /* pleat broke its own rules: 3; always a defect worth a report */
} pl_status;

/* Name of a code, for example "BAD_INPUT". Static storage, never NULL. */
const char *pl_status_name(pl_status status);

/* Exit status of a program whose last act ended in STATUS: 0, 1, 2 or 3 as above. */
int pl_status_exit_code(pl_status status);

/* The calling thread's latest failure: message, then one indented line for each context.
 * Borrowed until the thread's next failure. "" when nothing failed. */
const char *pl_error_text(void);

/* Forget the calling thread's latest failure. */
void pl_error_clear(void);

/* Add a line to the calling thread's latest failure: what was being done when it happened. */
void pl_error_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Make TEXT (copied) the calling thread's latest failure: for passing a failure from one thread
 * to another. */
void pl_error_set(const char *text);

/* What PL_FAIL calls: TEXT becomes the calling thread's latest failure, without context. */
void pl_error_record(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Record a failure and evaluate to CODE itself, so that compilers see that it is not PL_OK. */
#define PL_FAIL(code, ...) (pl_error_record(__VA_ARGS__), (code))

/* Return the failure of EXPRESSION from the current function. */
#define PL_TRY(expression)                                                                         \
    do {                                                                                           \
        pl_status pl_try_status_ = (expression);                                                   \
        if (pl_try_status_ != PL_OK) return pl_try_status_;                                        \
    } while (0)

/* Store the status of EXPRESSION in STATUS and, if it failed, jump to the cleanup LABEL. */
#define PL_TRY_TO(status, label, expression)                                                       \
    do {                                                                                           \
        (status) = (expression);                                                                   \
        if ((status) != PL_OK) goto label;                                                         \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
