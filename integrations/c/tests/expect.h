// Checks of a status and of the last error's text. A mistake is counted and told.
#ifndef EXPECT_H
#define EXPECT_H

#include "../examples/memory.h"

static int checks, mistakes;

// That `status` is `code`, and that the last error's text begins with `text`.
static inline void expect(int line, int status, int code, const char *text) {
    checks++;
    if (status == code && (code == WARPTILE_OK || strncmp(warptile_last_error(), text, strlen(text)) == 0)) return;
    mistakes++;
    fprintf(stderr, "line %d: status %d, not %d; text \"%s\", not \"%s...\"\n", line, status, code, warptile_last_error(), text);
}

#define INVALID(status, text) expect(__LINE__, status, WARPTILE_INVALID, text)
#define WORKS(status) expect(__LINE__, status, WARPTILE_OK, "")

#endif
