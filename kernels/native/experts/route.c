/* Which experts a token goes through, by its router's results, and what each of them counts. */
#include <math.h>
#include <stdbool.h>

#include "experts.h"
#include "processor/arithmetic.h"

/* Tokens that are worth a thread's while, times experts: some 10 us. */
#define ROUTED_SHARE 4096

typedef struct {
    const pw_routing *routing;
    const float *logits;
    int64_t num_tokens;
    int32_t *chosen;
    float *shares;
} route_context;

/* The place of the greatest that is not taken, of equal ones the first; there is always one. */
static int64_t find_best(const float *values, const bool *taken, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!taken[i] && (best < 0 || values[i] > values[best])) {
            best = i;
        }
    }
    return best;
}

static void softmax(const float *logits, int64_t count, float *scores) {
    float most = logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    for (int64_t i = 0; i < count; i++) {
        scores[i] = expf(logits[i] - most);
        sum += scores[i];
    }
    for (int64_t i = 0; i < count; i++) {
        scores[i] /= sum;
    }
}

static void score(const pw_routing *routing, const float *logits, float *scores) {
    if (routing->scores == PW_SOFTMAX) {
        softmax(logits, routing->num_experts, scores);
        return;
    }
    for (int64_t i = 0; i < routing->num_experts; i++) {
        scores[i] = 1.0f / (1.0f + expf(-logits[i]));
    }
}

/* The two best of a group, added up. */
static float rate(const float *group, int64_t size) {
    bool taken[PW_MOST_EXPERTS] = {false};
    const int64_t first = find_best(group, taken, size);
    taken[first] = true;
    const int64_t second = find_best(group, taken, size);
    return second < 0 ? group[first] : group[first] + group[second];
}

/* Experts of other groups than the best ones become what is chosen last. */
static void keep_groups(const pw_routing *routing, float *wanted) {
    const int64_t count = routing->num_groups, size = routing->num_experts / count;
    float ratings[PW_MOST_EXPERTS];
    bool kept[PW_MOST_EXPERTS] = {false};
    for (int64_t group = 0; group < count; group++) {
        ratings[group] = rate(wanted + group * size, size);
    }
    for (int64_t i = 0; i < routing->kept_groups; i++) {
        kept[find_best(ratings, kept, count)] = true;
    }
    for (int64_t i = 0; i < routing->num_experts; i++) {
        wanted[i] = kept[i / size] ? wanted[i] : -INFINITY;
    }
}

static void choose_best(const pw_routing *routing, const float *logits, int32_t *chosen,
                        float *shares) {
    float scores[PW_MOST_EXPERTS], wanted[PW_MOST_EXPERTS];
    bool taken[PW_MOST_EXPERTS] = {false};
    score(routing, logits, scores);
    for (int64_t i = 0; i < routing->num_experts; i++) {
        wanted[i] = routing->correction ? scores[i] + routing->correction[i] : scores[i];
    }
    if (routing->kept_groups < routing->num_groups) {
        keep_groups(routing, wanted);
    }
    for (int64_t i = 0; i < routing->per_token; i++) {
        const int64_t best = find_best(wanted, taken, routing->num_experts);
        taken[best] = true;
        chosen[i] = (int32_t)best;
        shares[i] = scores[best];
    }
}

/* What the best one's softmax gives it over those that are not taken, and near. */
static float share_near(const pw_routing *routing, const float *logits, const bool *taken,
                        float most) {
    float sum = 0;
    for (int64_t i = 0; i < routing->num_experts; i++) {
        const float magnitude = fabsf(logits[i]) > most ? fabsf(logits[i]) : most;
        const bool is_far = (most - logits[i]) / magnitude > (float)routing->margin;
        sum += taken[i] || is_far ? 0 : expf(logits[i] - most);
    }
    return 1.0f / sum;
}

static void choose_near_best(const pw_routing *routing, const float *logits, int32_t *chosen,
                             float *shares) {
    bool taken[PW_MOST_EXPERTS] = {false};
    for (int64_t i = 0; i < routing->per_token; i++) {
        const int64_t best = find_best(logits, taken, routing->num_experts);
        chosen[i] = (int32_t)best;
        shares[i] = share_near(routing, logits, taken, logits[best]);
        taken[best] = true;
    }
}

static void weigh(const pw_routing *routing, float *shares) {
    float sum = 0;
    for (int64_t i = 0; i < routing->per_token; i++) {
        sum += shares[i];
    }
    const float least = (float)routing->least_sum, divisor = sum < least ? least : sum;
    for (int64_t i = 0; i < routing->per_token; i++) {
        shares[i] = (routing->is_normalised ? shares[i] / divisor : shares[i]) *
                    (float)routing->scale;
    }
}

static void route_part(void *context, int part, int num_parts) {
    const route_context *task = context;
    const pw_routing *routing = task->routing;
    const int64_t last = task->num_tokens * (part + 1) / num_parts;
    for (int64_t token = task->num_tokens * part / num_parts; token < last; token++) {
        const float *logits = task->logits + token * routing->num_experts;
        int32_t *chosen = task->chosen + token * routing->per_token;
        float *shares = task->shares + token * routing->per_token;
        if (routing->scores == PW_SOFTMAX_NEAR_BEST) {
            choose_near_best(routing, logits, chosen, shares);
        } else {
            choose_best(routing, logits, chosen, shares);
        }
        weigh(routing, shares);
    }
}

void pw_route(const pw_routing *routing, const float *logits, int64_t num_tokens, int32_t *chosen,
              float *shares) {
    route_context task = {routing, logits, num_tokens, chosen, shares};
    const int64_t parts = num_tokens * routing->num_experts / ROUTED_SHARE + 1;
    pw_parallel(route_part, &task, (int)pw_least(num_tokens, parts));
}
