/* The C interface: random tokens on the backend that the library chooses, then on the fp64 reference, and how far the
 * two results are apart.
 *
 *   cc forward.c -lflashkda -lm
 */
#include <flashkda/flashkda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 256, kHeads = 2, kDim = 128, kElements = kTokens * kHeads * kDim };

static float* random_floats(int count) {
  float* x = malloc(sizeof(float) * (size_t)count);
  for (int i = 0; x != NULL && i < count; ++i) x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
  return x;
}

static void check(fkda_status status) {
  if (status == FKDA_OK) return;
  fprintf(stderr, "%s\n", fkda_last_error()); /* the argument, what it got and what it needs */
  exit(EXIT_FAILURE);
}

/* README: begin */
static void forward(const fkda_problem* problem) {
  size_t bytes = 0;
  check(fkda_workspace_size(problem, &bytes));
  const size_t rounded = (bytes / FKDA_WORKSPACE_ALIGNMENT + 1) * FKDA_WORKSPACE_ALIGNMENT;
  void* workspace = aligned_alloc(FKDA_WORKSPACE_ALIGNMENT, rounded);
  check(fkda_forward(problem, workspace, bytes, NULL));
  free(workspace);
}
/* README: end */

int main(void) {
  float *q = random_floats(kElements), *k = random_floats(kElements), *v = random_floats(kElements);
  float *g = random_floats(kElements), *beta = random_floats(kTokens * kHeads);
  float *out = random_floats(kElements), *reference = random_floats(kElements);

  /* README: begin */
  const int64_t tokens[] = {1, kTokens, kHeads, kDim}, heads[] = {1, kTokens, kHeads};
  fkda_problem problem;
  fkda_problem_init(&problem); /* bounded gate, l2norm of q and k, sigmoid of beta, state from zero */
  problem.q = fkda_dense(q, FKDA_FLOAT32, 4, tokens);
  problem.k = fkda_dense(k, FKDA_FLOAT32, 4, tokens);
  problem.v = fkda_dense(v, FKDA_FLOAT32, 4, tokens);
  problem.g = fkda_dense(g, FKDA_FLOAT32, 4, tokens);
  problem.beta = fkda_dense(beta, FKDA_FLOAT32, 3, heads);
  problem.out = fkda_dense(out, FKDA_FLOAT32, 4, tokens);
  forward(&problem);
  /* README: end */

  problem.backend = "reference";
  problem.out = fkda_dense(reference, FKDA_FLOAT32, 4, tokens);
  forward(&problem);

  double difference = 0, norm = 0;
  for (int i = 0; i < kElements; ++i) {
    difference += pow(out[i] - reference[i], 2);
    norm += pow(reference[i], 2);
  }
  const double error = sqrt(difference / norm);
  printf("o differs from the fp64 reference by %.1e of its rms\n", error);

  free(q), free(k), free(v), free(g), free(beta), free(out), free(reference);
  return error < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
