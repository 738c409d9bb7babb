/* FlashKDA: Kimi Delta Attention. The C interface.
 *
 * One call computes, per value head hv (which reads q/k head hv / (HV/H)):
 *
 *   q_t, k_t <- x * rsqrt(sum(x^2) + 1e-6)                     if qk_l2norm
 *   a_t [K]  <- the log decay, from g_t by the gate kind        (fkda_gate)
 *   b_t      <- sigmoid(beta_t), 2*sigmoid(beta_t) or beta_t    (fkda_beta)
 *   S        <- diag(exp(a_t)) S                                S is [K,V], fp32 on chip
 *   S        <- S + k_t (b_t (v_t - S^T k_t))^T
 *   o_t      <- scale * S^T q_t
 *
 * docs/algorithm.md derives the chunked form that the backends compute.
 *
 * Use: fkda_problem_init, fill the views, fkda_workspace_size, fkda_forward. No function prints, aborts, throws or
 * allocates device memory. A failed call has written nothing: every check comes before the first launch or store.
 * All functions are thread-safe; two calls share nothing but the thread pool of the CPU backend.
 */
#ifndef FLASHKDA_FLASHKDA_H_
#define FLASHKDA_FLASHKDA_H_

#include <stddef.h>
#include <stdint.h>

#include "flashkda/export.h"
#include "flashkda/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ status codes */

typedef enum fkda_status {
  FKDA_OK = 0,
  FKDA_INVALID_ARGUMENT = 1,    /* an argument breaks the contract; fkda_last_error() names it */
  FKDA_UNSUPPORTED = 2,         /* a valid problem that no implementation on this device computes */
  FKDA_WORKSPACE_TOO_SMALL = 3, /* fewer bytes than fkda_workspace_size() asks for */
  FKDA_DEVICE_ERROR = 4,        /* the device's runtime reported an error */
  FKDA_INTERNAL_ERROR = 5       /* a fault of the library */
} fkda_status;

/* Short name of a status code, e.g. "invalid argument". Never NULL. */
FLASHKDA_API const char* fkda_status_string(fkda_status status);

/* What the last failed call of this thread had to say: the argument, what it got and what it needs. Valid until the
 * thread's next call; "" if there was no failure. */
FLASHKDA_API const char* fkda_last_error(void);

/* ------------------------------------------------------------------------------------------------- tensor views */

typedef enum fkda_dtype {
  FKDA_FLOAT32 = 1,
  FKDA_BFLOAT16 = 2,
  FKDA_FLOAT16 = 3,
  FKDA_FLOAT64 = 4, /* outputs of the reference backend only */
  FKDA_INT32 = 5,
  FKDA_INT64 = 6
} fkda_dtype;

typedef enum fkda_device_type { FKDA_CPU = 0, FKDA_CUDA = 1 } fkda_device_type;

enum { FKDA_MAX_DIMS = 5 };

/* A view of memory the caller owns. A view with ndim == 0 is absent (a zeroed struct is an absent view). */
typedef struct fkda_tensor {
  void* data;                    /* may be NULL only if the view has no elements */
  int32_t dtype;                 /* fkda_dtype */
  int32_t device_type;           /* fkda_device_type */
  int32_t device_index;          /* CUDA ordinal; 0 for the CPU */
  int32_t ndim;                  /* 0 = absent, at most FKDA_MAX_DIMS */
  int64_t shape[FKDA_MAX_DIMS];  /* elements */
  int64_t stride[FKDA_MAX_DIMS]; /* elements; the last dimension of every view must be dense (stride 1) */
} fkda_tensor;

/* A dense row-major view. Shape has ndim entries. */
FLASHKDA_API fkda_tensor fkda_dense(void* data, fkda_dtype dtype, int32_t ndim, const int64_t* shape);

/* ------------------------------------------------------------------------------------------------------ options */

typedef enum fkda_gate {
  FKDA_GATE_BOUNDED = 0,  /* a = lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) */
  FKDA_GATE_SOFTPLUS = 1, /* a = -exp(A_log) * softplus(g + dt_bias) */
  FKDA_GATE_LOG = 2       /* a = g, the natural log of the decay, <= 0; A_log and dt_bias must be absent */
} fkda_gate;

typedef enum fkda_beta {
  FKDA_BETA_SIGMOID = 0,       /* b = sigmoid(beta) */
  FKDA_BETA_TWICE_SIGMOID = 1, /* b = 2 sigmoid(beta): allows negative eigenvalues */
  FKDA_BETA_ACTIVATED = 2      /* b = beta */
} fkda_beta;

typedef enum fkda_state_layout {
  FKDA_STATE_V_FIRST = 0, /* [.., V, K] */
  FKDA_STATE_K_FIRST = 1  /* [.., K, V] */
} fkda_state_layout;

/* How the cuda backends may cut a sequence into segments that run side by side (docs/kernels/split.md). */
typedef enum fkda_split {
  FKDA_SPLIT_AUTO = 0,  /* where it pays; what provably shrinks to 2^-126 of its size before a segment's end is dropped
                           (with qk_l2norm and a sigmoid of beta, which let no state grow) */
  FKDA_SPLIT_EXACT = 1, /* where it pays; nothing is dropped */
  FKDA_SPLIT_NEVER = 2
} fkda_split;

/* ------------------------------------------------------------------------------------------------- the problem
 * B batch, T tokens, N sequences, H q/k heads, HV value heads (a multiple of H), K key width, V value width.
 * Dense batch: no cu_seqlens, N = B sequences of T tokens. Packed batch: B = 1, sequence n is the token rows
 * cu_seqlens[n] .. cu_seqlens[n+1]-1. States, checkpoints and intermediate states are in state_layout; [V,K] below
 * stands for either order. Token and head strides of q, k, v, g, beta and out are free; of states the slot and head
 * strides are free and the last two dimensions dense.
 */
typedef struct fkda_problem {
  uint32_t struct_size; /* sizeof(fkda_problem), set by fkda_problem_init: the struct may grow at its end */

  /* Inputs, never modified. */
  fkda_tensor q;             /* [B,T,H,K]  bf16, fp16 or fp32 */
  fkda_tensor k;             /* [B,T,H,K]  dtype of q */
  fkda_tensor v;             /* [B,T,HV,V] dtype of q */
  fkda_tensor g;             /* [B,T,HV,K] bf16, fp16 or fp32 */
  fkda_tensor beta;          /* [B,T,HV]   bf16, fp16 or fp32 */
  fkda_tensor A_log;         /* [HV] fp32, any shape with HV elements; absent: exp(A_log) = 1 */
  fkda_tensor dt_bias;       /* [HV,K] or [HV*K] fp32; absent: 0 */
  fkda_tensor cu_seqlens;    /* [N+1] int32 or int64, dense; absent: dense batch */
  fkda_tensor initial_state; /* [N,HV,V,K] fp32 or bf16 (a pool [slots,HV,V,K] with state_indices); absent: zero */
  fkda_tensor state_indices; /* [N] int32 or int64: the slot of each sequence in initial_state and final_state;
                                < 0: start from zero and store nothing. Slots must differ. */

  /* Outputs. */
  fkda_tensor out;                 /* [B,T,HV,V] bf16, fp16 or fp32. Rows outside every sequence are not written. */
  fkda_tensor final_state;         /* [N,HV,V,K] fp32 or bf16 (or a pool); may be the very view of initial_state;
                                      absent: not stored */
  fkda_tensor checkpoints;         /* [N,P,HV,V,K] fp32 or bf16: state after checkpoint_offsets[n,p] tokens */
  fkda_tensor checkpoint_offsets;  /* [N,P] int32 or int64: multiples of 16 in 0..length; negative: slot unused */
  fkda_tensor intermediate_states; /* [B,NT,HV,V,K] fp32, bf16 or fp16: state before every intermediate_every tokens;
                                      NT = sum over the sequences of row b of ceil(length / intermediate_every) */

  /* Options. */
  int32_t gate;               /* fkda_gate */
  float lower_bound;          /* bounded gate: in [-5, 0) */
  float scale;                /* NaN (set by init): 1/sqrt(K) */
  int32_t qk_l2norm;          /* 0 or 1 */
  int32_t beta_activation;    /* fkda_beta */
  int32_t state_layout;       /* fkda_state_layout */
  int32_t intermediate_every; /* tokens, a positive multiple of 16 */
  int32_t batch_invariant;    /* 1: a sequence has the same bits alone, in any batch, or resumed at a multiple of 64
                                 tokens from an fp32 state. The CPU backends always grant it, "cuda" then
                                 keeps to its portable path and never splits a sequence. */
  int32_t num_threads;        /* CPU: worker threads, 0 = all cores this process may run on */
  const char* backend;        /* NULL or "auto": FLASH_KDA_BACKEND if set, else the first that fits; or a name of
                                 fkda_implementation_info */
  void (*progress)(void* user, int64_t done, int64_t total); /* CPU, optional: called on the calling thread */
  void* progress_user;
  int32_t sequence_split; /* fkda_split; the CPU backends never split */
} fkda_problem;

/* Sets every view absent and every option to: bounded gate with lower_bound -5, scale NaN, l2norm on, sigmoid, v-first,
 * intermediate_every 64, automatic split, backend and threads. */
FLASHKDA_API void fkda_problem_init(fkda_problem* problem);

/* ---------------------------------------------------------------------------------------------------------- run */

/* Checks the problem as fkda_forward would and finds the implementation that would run it. *name (optional) gets its
 * name, a static string. */
FLASHKDA_API fkda_status fkda_validate(const fkda_problem* problem, const char** name);

/* Bytes of workspace that fkda_forward needs for this problem, exactly. The workspace is memory of the problem's
 * device, aligned to FKDA_WORKSPACE_ALIGNMENT; its old contents never matter and nothing is kept in it. */
FLASHKDA_API fkda_status fkda_workspace_size(const fkda_problem* problem, size_t* bytes);

enum { FKDA_WORKSPACE_ALIGNMENT = 256 };

/* Computes the problem. stream: a cudaStream_t for CUDA tensors (the call is asynchronous), NULL for the CPU (the call
 * returns when the results are written). */
FLASHKDA_API fkda_status fkda_forward(const fkda_problem* problem, void* workspace, size_t workspace_bytes,
                                      void* stream);

/* -------------------------------------------------------------------------------------------- implementations */

typedef struct fkda_implementation {
  const char* name;     /* what backend and FLASH_KDA_BACKEND take, e.g. "cpu" */
  int32_t device_type;  /* fkda_device_type of the tensors it computes on */
  int32_t available;    /* 1 if this machine can run it */
  const char* detail;   /* e.g. the instruction set chosen at run time */
  const char* features; /* space-separated feature names, the words of an FKDA_UNSUPPORTED message */
} fkda_implementation;

FLASHKDA_API int32_t fkda_implementation_count(void);

/* Entry 0 <= index < count, in the order in which the automatic choice tries them. Strings are static. */
FLASHKDA_API fkda_status fkda_implementation_info(int32_t index, fkda_implementation* info);

/* "major.minor.patch" of the loaded library. */
FLASHKDA_API const char* fkda_version(void);

/* ------------------------------------------------------------------------------------------------ see a chunk */

/* Every symbol of the chunked form (docs/algorithm.md) for one chunk, in fp64, row-major and dense. Set the first four
 * members; buffers may be NULL if not wanted and must hold chunk_size rows. Filled are `rows` rows, packed: a square
 * matrix is [rows,rows]. */
typedef struct fkda_chunk {
  uint32_t struct_size; /* sizeof(fkda_chunk) */
  int32_t chunk_size;   /* 16, 32 or 64 */
  int64_t sequence;     /* 0 .. N-1 */
  int64_t head;         /* value head, 0 .. HV-1 */
  int64_t chunk;        /* 0 .. ceil(length / chunk_size)-1 */

  int64_t rows;        /* out: tokens in this chunk, 1 .. chunk_size */
  int64_t first_token; /* out: index in the sequence of the chunk's first token */

  double *q, *k, *v;         /* [rows,K], [rows,K], [rows,V] after normalisation (q not scaled) */
  double* a;                 /* [rows,K] log decay per token */
  double* G;                 /* [rows,K] prefix sum of a within the chunk, the token itself included */
  double* b;                 /* [rows] activated beta */
  double *kd, *qd, *ki, *kr; /* [rows,K]: k exp(G), scale q exp(G), k exp(-G) (inf where it overflows fp64),
                                k exp(G_last - G) */
  double *L, *Mqk, *INV;     /* [rows,rows]: strictly lower, lower with diagonal, (I + L)^-1 */
  double* U;                 /* [rows,V] = INV (b o (v - kd S)) */
  double* O;                 /* [rows,V] = qd S + Mqk U */
  double* S;                 /* [K,V] state before the chunk (always K x V, whatever state_layout) */
  double* S_next;            /* [K,V] state after it */
} fkda_chunk;

/* Computes a chunk's symbols with the plain fp64 recurrence before it. CPU tensors only; the problem's outputs may be
 * absent and are not written. Cost: the tokens of that sequence up to the chunk, one head. */
FLASHKDA_API fkda_status fkda_inspect_chunk(const fkda_problem* problem, fkda_chunk* chunk);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FLASHKDA_FLASHKDA_H_ */
