/* What the files of the sample library share. Everything is allocated with calloc; all sizes are bytes. */
#ifndef NNCTS_NATIVE_H
#define NNCTS_NATIVE_H

#include <pthread.h>

#include "neuralnetworks.h"

/* Faults that a build can have: `gcc -DFAULT=FAULT_CRASH`. The sound library has none. */
enum {
    FAULT_NONE,
    FAULT_CRASH,   /* MUL of float32 reads from address 0 */
    FAULT_HANG,    /* RELU of float32 never ends */
    FAULT_OVERRUN, /* ADD of float32 writes one element too many */
    FAULT_VALUE,   /* SOFTMAX does as if beta were 1 */
    FAULT_BIASED,  /* results of quantised operations are rounded down */
    FAULT_LEAK,    /* each execution keeps 256 KiB */
    FAULT_RACE,    /* results of all threads pass through one place */
    FAULT_HEAP,    /* one value too few is allocated, which the allocator hides */
    /* Those of deep.c, for a fuzzer. */
    FAULT_DEEP_HEAP,
    FAULT_DEEP_STACK,
    FAULT_DEEP_LOOP,
    FAULT_DEEP_UNINITIALISED,
    FAULT_DEEP_DIVIDE,
    FAULT_DEEP_VALUE,
    FAULT_DEEP_LEAK,
    FAULT_DEEP_RACE,
    FAULT_DEEP_SIGNED,
    FAULT_DEEP_NULL,
    FAULT_DEEP_INDEX,
    FAULT_DEEP_WRAP,
    FAULT_DEEP_RELEASE,
    FAULT_DEEP_TOKEN,
    FAULT_DEEP_TWICE,
};
#ifndef FAULT
#define FAULT FAULT_NONE
#endif

enum { MOST_DIMENSIONS = 8, MOST_INPUTS = 16 };

typedef enum { TEMPORARY, INPUT, OUTPUT, CONSTANT, NO_VALUE, GRAPH } Origin;

typedef struct {
    int32_t type;
    uint32_t rank;
    uint32_t dims[MOST_DIMENSIONS]; /* 0 where not known; a rank of 0 is not known either, for a tensor */
    float scale;
    int32_t zero_point;
    Origin origin;
    void *value; /* own copy of a constant */
    size_t length;
    uint32_t channel_dim, channels;
    float *scales; /* for each channel */
} Operand;

typedef struct {
    int32_t type;
    uint32_t input_count, output_count;
    uint32_t *inputs, *outputs;
    uint32_t place; /* in the order in which operations were added */
} Operation;

struct ANeuralNetworksModel {
    Operand *operands;
    uint32_t operand_count;
    Operation *operations; /* in an order in which they can be run, once finished */
    uint32_t operation_count;
    uint32_t *inputs, input_count, *outputs, output_count;
    bool relaxed, finished, bad;
};

struct ANeuralNetworksCompilation {
    const ANeuralNetworksModel *model;
    const ANeuralNetworksDevice *device;
    uint64_t timeout;
    char *cache_path;
    bool finished;
};

/* An input or output that memory of the library is for. */
typedef struct {
    const ANeuralNetworksCompilation *compilation;
    bool output;
    uint32_t index;
} Role;

struct ANeuralNetworksMemory {
    char *data;
    size_t size;
    void *mapping; /* of a file; NULL for the library's own memory */
    size_t mapped;
    bool writable, own, filled; /* filled: something has been written to own memory */
    uint32_t rank, dims[MOST_DIMENSIONS];
    Role *roles;
    uint32_t role_count;
};

/* An operand's value while a model runs. */
typedef struct {
    const Operand *operand;
    int32_t type;
    uint32_t rank, dims[MOST_DIMENSIONS];
    void *data;
    bool own; /* freed at the end */
} Value;

typedef struct {
    bool set, omitted, short_of_room;
    uint32_t rank, dims[MOST_DIMENSIONS]; /* what the request says; of outputs what they have at the end */
    char *buffer;
    size_t length;
    ANeuralNetworksMemory *own;
} Binding;

struct ANeuralNetworksExecution {
    ANeuralNetworksCompilation *compilation;
    Binding *inputs, *outputs;
    uint64_t timeout, took;
    bool measured, reusable, started, running, done;
    pthread_mutex_t lock;
};

struct ANeuralNetworksDevice {
    const char *name;
    int64_t level;
};

/* What a burst of a faulty library keeps. */
typedef struct {
    uint32_t count;
    void *kept;
} DeepBurst;

/* Where the faults of deep.c are met; nothing happens in the sound library. */
void deep_compute(const Operation *operation, Value *const *inputs, const Value *output);
void deep_validate(const ANeuralNetworksModel *model, const Operation *operation);
bool deep_index(const ANeuralNetworksModel *model, uint32_t index);
bool deep_fits(const ANeuralNetworksMemory *memory, size_t offset, size_t length, bool output);
void deep_burst(DeepBurst *burst, const ANeuralNetworksExecution *execution);
void deep_memory_free(ANeuralNetworksMemory *memory);
void deep_memory_make(const Role *roles, uint32_t count);
void deep_end(const ANeuralNetworksExecution *execution, int code);

size_t size_of_type(int32_t type); /* bytes of an element; 0 for a graph */
bool is_scalar(int32_t type);
bool is_quantised(int32_t type);
size_t count_of(uint32_t rank, const uint32_t *dims);
bool is_known(uint32_t rank, const uint32_t *dims);

/* Rules of single operations: false where one is broken. Of operations that the library does not know none is. */
bool is_valid(const ANeuralNetworksModel *model, const Operation *operation);
bool is_supported(const ANeuralNetworksModel *model, const Operation *operation);

/* Dimensions of a result, then the result itself. Both give a result code. */
int infer(const Operation *operation, Value *const *inputs, Value *output);
int compute(const Operation *operation, Value *const *inputs, const Value *output);

/* Runs an execution whose bindings are there; `until` is a time of the monotonic clock in nanoseconds, 0 for none. */
int run(ANeuralNetworksExecution *execution, uint64_t until);
uint64_t now(void);

#endif
