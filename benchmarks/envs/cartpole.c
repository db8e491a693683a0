/* CartPole-v1's dynamics for many carts at once (Barto, Sutton, Anderson 1983; constants and limits of Gymnasium).
 * Written into the caller's arrays. A cart whose episode has ended is reset by its next step: NEXT_STEP autoreset. */
#include <math.h>
#include <stdint.h>

static float uniform(uint64_t *state) { /* xorshift64*, to [-0.05, 0.05) */
    uint64_t x = *state;
    x ^= x >> 12; x ^= x << 25; x ^= x >> 27;
    *state = x;
    return (float)((x * 2685821657736338717ULL) >> 40) / 16777216.0f * 0.1f - 0.05f;
}

void reset(int count, float *obs, int32_t *age, uint64_t *random) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 4; k++) obs[4 * i + k] = uniform(&random[i]);
        age[i] = 0;
    }
}

void step(int count, int limit, const int64_t *action, float *obs, float *reward, uint8_t *terminated,
          uint8_t *truncated, int32_t *age, uint64_t *random) {
    const float mass = 1.1f, pole = 0.05f, tau = 0.02f;
    for (int i = 0; i < count; i++) {
        float *s = obs + 4 * i;
        if (terminated[i] || truncated[i]) {
            reset(1, s, age + i, random + i);
            terminated[i] = truncated[i] = 0;
            reward[i] = 0.0f;
            continue;
        }
        float force = action[i] ? 10.0f : -10.0f, cosine = cosf(s[2]), sine = sinf(s[2]);
        float temp = (force + pole * s[3] * s[3] * sine) / mass;
        float turn = (9.8f * sine - cosine * temp) / (0.5f * (4.0f / 3.0f - 0.1f * cosine * cosine / mass));
        float push = temp - pole * turn * cosine / mass;
        s[0] += tau * s[1];
        s[1] += tau * push;
        s[2] += tau * s[3];
        s[3] += tau * turn;
        age[i]++;
        terminated[i] = fabsf(s[0]) > 2.4f || fabsf(s[2]) > 0.20943951f;
        truncated[i] = !terminated[i] && age[i] >= limit;
        reward[i] = 1.0f;
    }
}
