/* The C interface by itself: this file is C11, and flashkda.h is all it sees of the library. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashkda/flashkda.h"

static int failures = 0;

#define CHECK(condition)                                                                                              \
  do {                                                                                                                \
    if (!(condition)) {                                                                                               \
      ++failures;                                                                                                     \
      fprintf(stderr, "%s:%d: failed: %s (last error: \"%s\")\n", __FILE__, __LINE__, #condition, fkda_last_error()); \
    }                                                                                                                 \
  } while (0)

#define CHECK_NEAR(got, want) CHECK(fabs((double)(got) - (want)) <= 1e-6)

enum { kTokens = 2, kWidth = 8 };

/* Two tokens, one head. Both keys are e_0, the values 2 e_1 and 4 e_1, the queries e_0; every channel halves a token;
 * b is 1, then 1/2. So S[0,1] is 2, then 2/2 + (4 - 2/2)/2 = 2.5, and o[:,1] is 2, then 2.5. */
typedef struct Case {
  float q[kTokens][kWidth], k[kTokens][kWidth], v[kTokens][kWidth], g[kTokens][kWidth], beta[kTokens];
  float out[kTokens][kWidth], state[kWidth][kWidth];
  fkda_problem problem;
} Case;

static void make_case(Case* c) {
  const int64_t tokens[] = {1, kTokens, 1, kWidth}, heads[] = {1, kTokens, 1}, states[] = {1, 1, kWidth, kWidth};
  memset(c, 0, sizeof(*c));
  for (int t = 0; t < kTokens; ++t) {
    c->q[t][0] = c->k[t][0] = 1.0f;
    c->v[t][1] = t == 0 ? 2.0f : 4.0f;
    c->beta[t] = t == 0 ? 1.0f : 0.5f;
    for (int d = 0; d < kWidth; ++d) {
      c->g[t][d] = logf(0.5f);
      c->out[t][d] = 7.0f;
    }
  }
  fkda_problem_init(&c->problem);
  c->problem.q = fkda_dense(c->q, FKDA_FLOAT32, 4, tokens);
  c->problem.k = fkda_dense(c->k, FKDA_FLOAT32, 4, tokens);
  c->problem.v = fkda_dense(c->v, FKDA_FLOAT32, 4, tokens);
  c->problem.g = fkda_dense(c->g, FKDA_FLOAT32, 4, tokens);
  c->problem.beta = fkda_dense(c->beta, FKDA_FLOAT32, 3, heads);
  c->problem.out = fkda_dense(c->out, FKDA_FLOAT32, 4, tokens);
  c->problem.final_state = fkda_dense(c->state, FKDA_FLOAT32, 4, states);
  c->problem.gate = FKDA_GATE_LOG;
  c->problem.beta_activation = FKDA_BETA_ACTIVATED;
  c->problem.qk_l2norm = 0;
  c->problem.scale = 1.0f;
}

static int out_is_untouched(const Case* c) {
  for (int t = 0; t < kTokens; ++t)
    for (int d = 0; d < kWidth; ++d)
      if (c->out[t][d] != 7.0f) return 0;
  return 1;
}

static void* allocate_workspace(size_t bytes) {
  return aligned_alloc(FKDA_WORKSPACE_ALIGNMENT, (bytes / FKDA_WORKSPACE_ALIGNMENT + 1) * FKDA_WORKSPACE_ALIGNMENT);
}

static void test_defaults(void) {
  fkda_problem p;
  memset(&p, 0xff, sizeof(p));
  fkda_problem_init(&p);
  CHECK(p.struct_size == sizeof(p));
  CHECK(p.q.ndim == 0 && p.out.ndim == 0 && p.cu_seqlens.ndim == 0 && p.backend == NULL && p.progress == NULL);
  CHECK(p.gate == FKDA_GATE_BOUNDED && p.lower_bound == -5.0f);
  CHECK(isnan(p.scale) && p.qk_l2norm == 1 && p.beta_activation == FKDA_BETA_SIGMOID);
  CHECK(p.state_layout == FKDA_STATE_V_FIRST && p.intermediate_every == 64);
  CHECK(p.batch_invariant == 0 && p.num_threads == 0 && p.sequence_split == FKDA_SPLIT_AUTO);
}

static void test_dense(void) {
  float x[24];
  const int64_t shape[] = {2, 3, 4};
  const fkda_tensor t = fkda_dense(x, FKDA_FLOAT32, 3, shape);
  CHECK(t.data == x && t.dtype == FKDA_FLOAT32 && t.device_type == FKDA_CPU && t.ndim == 3);
  CHECK(t.shape[0] == 2 && t.shape[2] == 4);
  CHECK(t.stride[0] == 12 && t.stride[1] == 4 && t.stride[2] == 1);
}

static void test_forward(void) {
  Case c;
  size_t bytes = 0;
  const char* name = NULL;
  make_case(&c);
  CHECK(fkda_validate(NULL, NULL) == FKDA_INVALID_ARGUMENT); /* whose message the calls below clear */
  CHECK(fkda_validate(&c.problem, &name) == FKDA_OK);
  CHECK(name != NULL && strlen(name) > 0);
  CHECK(fkda_validate(&c.problem, NULL) == FKDA_OK);
  CHECK(fkda_workspace_size(&c.problem, &bytes) == FKDA_OK);

  void* workspace = allocate_workspace(bytes);
  CHECK(fkda_forward(&c.problem, workspace, bytes, NULL) == FKDA_OK);
  CHECK(strcmp(fkda_last_error(), "") == 0);
  CHECK_NEAR(c.out[0][1], 2.0);
  CHECK_NEAR(c.out[1][1], 2.5);
  CHECK_NEAR(c.out[1][0], 0.0);
  CHECK_NEAR(c.state[1][0], 2.5); /* v-first: [v, k] */
  CHECK_NEAR(c.state[0][1], 0.0);
  free(workspace);
}

static void test_workspace_is_checked(void) {
  Case c;
  size_t bytes = 0;
  make_case(&c);
  CHECK(fkda_workspace_size(&c.problem, &bytes) == FKDA_OK);
  CHECK(bytes > 0);
  char* workspace = allocate_workspace(bytes + FKDA_WORKSPACE_ALIGNMENT);
  CHECK(fkda_forward(&c.problem, workspace, bytes - 1, NULL) == FKDA_WORKSPACE_TOO_SMALL);
  CHECK(strncmp(fkda_last_error(), "workspace: ", 11) == 0);
  CHECK(fkda_forward(&c.problem, NULL, bytes, NULL) == FKDA_WORKSPACE_TOO_SMALL);
  CHECK(fkda_forward(&c.problem, workspace + 4, bytes, NULL) == FKDA_INVALID_ARGUMENT);
  CHECK(out_is_untouched(&c));
  free(workspace);
}

static void test_rejections(void) {
  Case c;
  size_t bytes = 0;
  make_case(&c);
  CHECK(fkda_validate(NULL, NULL) == FKDA_INVALID_ARGUMENT);
  CHECK(fkda_workspace_size(&c.problem, NULL) == FKDA_INVALID_ARGUMENT);

  c.problem.k.ndim = 0;
  CHECK(fkda_validate(&c.problem, NULL) == FKDA_INVALID_ARGUMENT);
  CHECK(strncmp(fkda_last_error(), "k: ", 3) == 0);
  CHECK(fkda_workspace_size(&c.problem, &bytes) == FKDA_INVALID_ARGUMENT);
  CHECK(fkda_forward(&c.problem, NULL, 0, NULL) == FKDA_INVALID_ARGUMENT);
  CHECK(out_is_untouched(&c));

  make_case(&c);
  c.problem.struct_size = 0;
  CHECK(fkda_validate(&c.problem, NULL) == FKDA_INVALID_ARGUMENT);

  make_case(&c);
  c.problem.backend = "no such backend";
  CHECK(fkda_validate(&c.problem, NULL) != FKDA_OK);
  CHECK(strstr(fkda_last_error(), "no such backend") != NULL);
}

static void test_implementations(void) {
  const int32_t count = fkda_implementation_count();
  int found = 0;
  fkda_implementation info;
  CHECK(count > 0);
  for (int32_t i = 0; i < count; ++i) {
    CHECK(fkda_implementation_info(i, &info) == FKDA_OK);
    CHECK(info.name != NULL && info.detail != NULL && info.features != NULL);
    if (strcmp(info.name, "cpu") == 0) found = info.available == 1 && info.device_type == FKDA_CPU;
  }
  CHECK(found);
  CHECK(fkda_implementation_info(-1, &info) == FKDA_INVALID_ARGUMENT);
  CHECK(fkda_implementation_info(count, &info) == FKDA_INVALID_ARGUMENT);
  CHECK(fkda_implementation_info(0, NULL) == FKDA_INVALID_ARGUMENT);
}

static void test_inspect(void) {
  Case c;
  double L[16 * 16], Mqk[16 * 16], INV[16 * 16];
  fkda_chunk chunk;
  make_case(&c);
  memset(&chunk, 0, sizeof(chunk));
  chunk.struct_size = sizeof(chunk);
  chunk.chunk_size = 16;
  chunk.L = L;
  chunk.Mqk = Mqk;
  chunk.INV = INV;
  CHECK(fkda_inspect_chunk(&c.problem, &chunk) == FKDA_OK);
  CHECK(chunk.rows == 2 && chunk.first_token == 0);
  CHECK(L[0] == 0.0 && L[1] == 0.0 && L[3] == 0.0);
  CHECK_NEAR(L[2], 0.25); /* b_1 (k_1 . k_0) / 2 */
  CHECK_NEAR(Mqk[0], 1.0);
  CHECK_NEAR(Mqk[2], 0.5);
  CHECK_NEAR(INV[2], -0.25);
  CHECK(out_is_untouched(&c));

  chunk.chunk = 1;
  CHECK(fkda_inspect_chunk(&c.problem, &chunk) == FKDA_INVALID_ARGUMENT);
  CHECK(fkda_inspect_chunk(&c.problem, NULL) == FKDA_INVALID_ARGUMENT);
}

static void test_names(void) {
  CHECK(strcmp(fkda_version(), FLASHKDA_VERSION_STRING) == 0);
  CHECK(strcmp(fkda_status_string(FKDA_OK), "ok") == 0);
  CHECK(strcmp(fkda_status_string(FKDA_UNSUPPORTED), "unsupported") == 0);
  CHECK(strlen(fkda_status_string((fkda_status)99)) > 0);
}

int main(void) {
  test_defaults();
  test_dense();
  test_forward();
  test_workspace_is_checked();
  test_rejections();
  test_implementations();
  test_inspect();
  test_names();
  if (failures == 0) puts("C interface: every check passed");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
