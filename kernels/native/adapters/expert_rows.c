/* Rows that are sorted by expert, and their adapters: as many small adaptations as there are experts
 * and adapters that have rows of each other. */
#include <string.h>

#include "adapters/adapters.h"
#include "processor/arithmetic.h"
#include "processor/scratch.h"

/* The rows of one expert that have one adapter. */
typedef struct {
    int64_t adapter, expert, first, count;
} segment;

typedef struct {
    const pw_expert_rows *rows;
    int32_t *owners;   /* [num_tokens]: the adapter of each; -1: none */
    int64_t *sorted;   /* [rows] */
    int64_t *places;   /* [num_adapters]: where the next row of each goes */
    segment *segments; /* [rows] */
    int64_t num_segments;
} sorting;

static const pw_change *change_of(const pw_expert_rows *rows, int64_t adapter) {
    return &rows->adapters[adapter].changes[rows->change];
}

static bool is_changed(const pw_expert_rows *rows) {
    for (int64_t i = 0; i < rows->num_adapters; i++) {
        if (change_of(rows, i)->num_parts) {
            return true;
        }
    }
    return false;
}

static void find_owners(const sorting *s) {
    const pw_expert_rows *rows = s->rows;
    memset(s->owners, -1, (size_t)rows->num_tokens * sizeof *s->owners);
    for (int64_t i = 0; i < rows->num_adapters; i++) {
        const pw_adapted_rows *adapted = &rows->adapters[i];
        for (int64_t j = 0; change_of(rows, i)->num_parts && j < adapted->num_rows; j++) {
            const int64_t token = adapted->rows[j] - rows->first_token;
            if (token >= 0 && token < rows->num_tokens) {
                s->owners[token] = (int32_t)i;
            }
        }
    }
}

/* The segments of one expert, whose rows are `row` up to `end`. */
static void sort_expert(sorting *s, int64_t expert, int64_t row, int64_t end) {
    const int64_t first = row;
    memset(s->places, 0, (size_t)s->rows->num_adapters * sizeof *s->places);
    for (; row < end; row++) {
        const int32_t owner = s->owners[s->rows->tokens[row]];
        if (owner >= 0) {
            s->places[owner]++;
        }
    }
    int64_t place = first;
    for (int64_t i = 0; i < s->rows->num_adapters; i++) {
        const int64_t count = s->places[i];
        s->places[i] = place;
        if (count) {
            s->segments[s->num_segments++] = (segment){i, expert, place, count};
        }
        place += count;
    }
    for (row = first; row < end; row++) {
        const int32_t owner = s->owners[s->rows->tokens[row]];
        if (owner >= 0) {
            s->sorted[s->places[owner]++] = row;
        }
    }
}

/* In memory of the calling thread. */
static sorting sorted(const pw_expert_rows *rows) {
    static _Thread_local pw_kept kept;
    const int64_t all = rows->ends[rows->num_experts - 1];
    size_t bytes = 0;
    const size_t owners = pw_carve(&bytes, rows->num_tokens * (int64_t)sizeof(int32_t));
    const size_t numbers = pw_carve(&bytes, all * (int64_t)sizeof(int64_t));
    const size_t places = pw_carve(&bytes, rows->num_adapters * (int64_t)sizeof(int64_t));
    const size_t segments = pw_carve(&bytes, all * (int64_t)sizeof(segment));
    char *memory = pw_keep(&kept, bytes);
    sorting s = {
        .rows = rows, .owners = (int32_t *)(memory + owners),
        .sorted = (int64_t *)(memory + numbers), .places = (int64_t *)(memory + places),
        .segments = (segment *)(memory + segments),
    };
    find_owners(&s);
    for (int64_t expert = 0, row = 0; expert < rows->num_experts; expert++) {
        if (row < rows->ends[expert]) {
            sort_expert(&s, expert, row, rows->ends[expert]);
            row = rows->ends[expert];
        }
    }
    return s;
}

/* What of a part is an expert's. */
static pw_low_rank of_expert(const pw_low_rank *part, int64_t expert, int64_t type) {
    const int64_t rank = part->rank / part->num_experts;
    const int64_t first = (expert - part->first_expert) * rank * pw_size(type);
    pw_low_rank own = *part;
    own.down = (const char *)part->down + first * part->in_features;
    own.up = (const char *)part->up + first * part->width;
    own.rank = rank;
    return own;
}

/* The parts that an expert has of a change, to `parts` unless that is NULL; returns their number. */
static int64_t parts_of(const pw_change *change, int64_t expert, int64_t type, pw_low_rank *parts) {
    int64_t count = 0;
    for (int64_t i = 0; i < change->num_parts; i++) {
        const pw_low_rank *part = &change->parts[i];
        const int64_t place = expert - part->first_expert;
        if (place >= 0 && place < part->num_experts) {
            if (parts) {
                parts[count] = of_expert(part, expert, type);
            }
            count++;
        }
    }
    return count;
}

void pw_adapt_experts(const pw_expert_rows *rows, const pw_adaptation *call) {
    static _Thread_local pw_kept kept;
    if (!is_changed(rows)) {
        return;
    }
    const sorting s = sorted(rows);
    int64_t num_parts = 0;
    for (int64_t i = 0; i < s.num_segments; i++) {
        const segment *one = &s.segments[i];
        num_parts += parts_of(change_of(rows, one->adapter), one->expert, call->type, NULL);
    }
    size_t bytes = 0;
    const size_t adapted = pw_carve(&bytes, s.num_segments * (int64_t)sizeof(pw_adapted_rows));
    const size_t changes = pw_carve(&bytes, s.num_segments * (int64_t)sizeof(pw_change));
    const size_t parts = pw_carve(&bytes, num_parts * (int64_t)sizeof(pw_low_rank));
    char *memory = pw_keep(&kept, bytes);
    pw_adapted_rows *all = (pw_adapted_rows *)(memory + adapted);
    pw_change *change = (pw_change *)(memory + changes);
    pw_low_rank *part = (pw_low_rank *)(memory + parts);
    for (int64_t i = 0; i < s.num_segments; i++) {
        const segment *one = &s.segments[i];
        const pw_change *whole = change_of(rows, one->adapter);
        const int64_t count = parts_of(whole, one->expert, call->type, part);
        change[i] = (pw_change){part, count};
        all[i] = (pw_adapted_rows){&change[i], s.sorted + one->first, one->count};
        part += count;
    }
    pw_adaptation each = *call;
    each.adapters = all;
    each.num_adapters = s.num_segments;
    each.change = 0;
    pw_adapt(&each);
}
