/* Compilations and executions: requests bound to memory, run at once, in a thread, in a burst or after events. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

struct ANeuralNetworksBurst {
    ANeuralNetworksCompilation *compilation;
    DeepBurst deep;
};

struct ANeuralNetworksEvent {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool threaded, done;
    int status, fence; /* fence: a descriptor that can be read when the event has come */
    ANeuralNetworksExecution *execution;
    int *waits;
    uint32_t wait_count;
    uint64_t duration, until;
};

uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Compilations */

int ANeuralNetworksCompilation_createForDevices(ANeuralNetworksModel *model,
                                                const ANeuralNetworksDevice *const *devices, uint32_t numDevices,
                                                ANeuralNetworksCompilation **compilation) {
    if (!model || !devices || !compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!model->finished) return ANEURALNETWORKS_BAD_STATE;
    if (numDevices != 1) return ANEURALNETWORKS_BAD_DATA;
    *compilation = calloc(1, sizeof **compilation);
    if (!*compilation) return ANEURALNETWORKS_OUT_OF_MEMORY;
    (*compilation)->model = model;
    (*compilation)->device = devices[0];
    return ANEURALNETWORKS_NO_ERROR;
}

void ANeuralNetworksCompilation_free(ANeuralNetworksCompilation *compilation) {
    if (compilation) free(compilation->cache_path);
    free(compilation);
}

int ANeuralNetworksCompilation_setPreference(ANeuralNetworksCompilation *compilation, int32_t preference) {
    if (!compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    return preference < 0 || preference > 2 ? ANEURALNETWORKS_BAD_DATA : ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksCompilation_setPriority(ANeuralNetworksCompilation *compilation, int priority) {
    if (!compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    bool known = priority == 90 || priority == 100 || priority == 110;
    return known ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_BAD_DATA;
}

int ANeuralNetworksCompilation_setTimeout(ANeuralNetworksCompilation *compilation, uint64_t duration) {
    if (!compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    compilation->timeout = duration;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksCompilation_setCaching(ANeuralNetworksCompilation *compilation, const char *cacheDir,
                                          const uint8_t *token) {
    if (!compilation || !cacheDir || !token) return ANEURALNETWORKS_UNEXPECTED_NULL;
    size_t length = strlen(cacheDir) + 2 * ANEURALNETWORKS_BYTE_SIZE_OF_CACHE_TOKEN + 2;
    free(compilation->cache_path);
    compilation->cache_path = malloc(length);
    if (!compilation->cache_path) return ANEURALNETWORKS_OUT_OF_MEMORY;
    int at = snprintf(compilation->cache_path, length, "%s/", cacheDir);
    for (int i = 0; i < ANEURALNETWORKS_BYTE_SIZE_OF_CACHE_TOKEN; i++)
        at += snprintf(compilation->cache_path + at, length - (size_t)at, "%02x", token[i]);
    return ANEURALNETWORKS_NO_ERROR;
}

/* What is cached is the number of operations: enough to see whether a file is ours, whole, and for this model. */
static void cache(const ANeuralNetworksCompilation *compilation) {
    uint32_t due[2] = {0x31434e4e, compilation->model->operation_count}, found[2] = {0, 0};
    FILE *file = fopen(compilation->cache_path, "rb");
    bool good = file && fread(found, sizeof found, 1, file) == 1 && !memcmp(due, found, sizeof due);
    if (file) fclose(file);
    if (good || !(file = fopen(compilation->cache_path, "wb"))) return;
    fwrite(due, sizeof due, 1, file);
    fclose(file);
}

int ANeuralNetworksCompilation_finish(ANeuralNetworksCompilation *compilation) {
    if (!compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (compilation->finished) return ANEURALNETWORKS_BAD_STATE;
    const ANeuralNetworksModel *model = compilation->model;
    uint64_t start = now();
    for (uint32_t i = 0; i < model->operation_count; i++)
        if (!is_supported(model, &model->operations[i])) return ANEURALNETWORKS_OP_FAILED;
    if (compilation->timeout && now() - start >= compilation->timeout)
        return ANEURALNETWORKS_MISSED_DEADLINE_PERSISTENT;
    if (compilation->cache_path) cache(compilation);
    compilation->finished = true;
    return ANEURALNETWORKS_NO_ERROR;
}

/* Executions */

int ANeuralNetworksExecution_create(ANeuralNetworksCompilation *compilation, ANeuralNetworksExecution **execution) {
    if (!compilation || !execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!compilation->finished) return ANEURALNETWORKS_BAD_STATE;
    ANeuralNetworksExecution *made = calloc(1, sizeof *made);
    if (!made) return ANEURALNETWORKS_OUT_OF_MEMORY;
    made->compilation = compilation;
    made->inputs = calloc(compilation->model->input_count + 1, sizeof(Binding));
    made->outputs = calloc(compilation->model->output_count + 1, sizeof(Binding));
    pthread_mutex_init(&made->lock, NULL);
    *execution = made;
    if (made->inputs && made->outputs) return ANEURALNETWORKS_NO_ERROR;
    ANeuralNetworksExecution_free(made);
    return ANEURALNETWORKS_OUT_OF_MEMORY;
}

void ANeuralNetworksExecution_free(ANeuralNetworksExecution *execution) {
    if (!execution) return;
    pthread_mutex_destroy(&execution->lock);
    free(execution->inputs);
    free(execution->outputs);
    free(execution);
}

/* Takes the dimensions of a request in, where they do not contradict the model's. */
static bool take_type(Binding *binding, const Operand *operand, const ANeuralNetworksOperandType *type) {
    binding->rank = operand->rank;
    memcpy(binding->dims, operand->dims, sizeof binding->dims);
    if (!type || is_scalar(operand->type)) return !type || !type->dimensionCount;
    if (!type->dimensionCount) return true;
    if (type->dimensionCount > MOST_DIMENSIONS || (operand->rank && operand->rank != type->dimensionCount)) return false;
    binding->rank = type->dimensionCount;
    for (uint32_t i = 0; i < binding->rank; i++) {
        uint32_t known = operand->rank ? operand->dims[i] : 0, said = type->dimensions[i];
        if (known && said && known != said) return false;
        binding->dims[i] = known ? known : said;
    }
    return true;
}

static int bind(ANeuralNetworksExecution *execution, bool output, int32_t index,
                const ANeuralNetworksOperandType *type, const void *buffer, size_t length) {
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (execution->started && !execution->reusable) return ANEURALNETWORKS_BAD_STATE;
    const ANeuralNetworksModel *model = execution->compilation->model;
    uint32_t count = output ? model->output_count : model->input_count;
    if (index < 0 || (uint32_t)index >= count || (!buffer && length)) return ANEURALNETWORKS_BAD_DATA;
    Binding *binding = &(output ? execution->outputs : execution->inputs)[index];
    if (binding->set) return ANEURALNETWORKS_BAD_STATE;
    const Operand *operand = &model->operands[(output ? model->outputs : model->inputs)[index]];
    for (uint32_t i = 0; !output && type && i < type->dimensionCount; i++)
        if (!type->dimensions[i]) return ANEURALNETWORKS_BAD_DATA; /* inputs are of known size */
    if (!take_type(binding, operand, type)) return ANEURALNETWORKS_BAD_DATA;
    binding->omitted = !buffer;
    bool known = is_scalar(operand->type) || is_known(binding->rank, binding->dims);
    if (!output && !known && buffer) return ANEURALNETWORKS_BAD_DATA;
    size_t due = known ? size_of_type(operand->type) * count_of(binding->rank, binding->dims) : length;
    if (buffer && length != due) return ANEURALNETWORKS_BAD_DATA;
    binding->buffer = (char *)buffer;
    binding->length = length;
    binding->set = true;
    return ANEURALNETWORKS_NO_ERROR;
}

static bool is_made_for(const ANeuralNetworksMemory *memory, const ANeuralNetworksCompilation *compilation,
                        bool output, int32_t index) {
    for (uint32_t i = 0; i < memory->role_count; i++) {
        const Role *role = &memory->roles[i];
        if (role->compilation == compilation && role->output == output && (int32_t)role->index == index) return true;
    }
    return false;
}

static int bind_memory(ANeuralNetworksExecution *execution, bool output, int32_t index,
                       const ANeuralNetworksOperandType *type, const ANeuralNetworksMemory *memory, size_t offset,
                       size_t length) {
    if (!execution || !memory) return ANEURALNETWORKS_UNEXPECTED_NULL;
    bool fits = offset <= memory->size && length <= memory->size - offset;
    if (!fits && !deep_fits(memory, offset, length, output)) return ANEURALNETWORKS_BAD_DATA;
    if (memory->own) {
        if (offset || length || !is_made_for(memory, execution->compilation, output, index))
            return ANEURALNETWORKS_BAD_DATA;
        length = memory->size;
    }
    if (output && !memory->writable) return ANEURALNETWORKS_BAD_DATA;
    int code = bind(execution, output, index, type, memory->data + offset, length);
    if (!code && memory->own)
        (output ? execution->outputs : execution->inputs)[index].own = (ANeuralNetworksMemory *)memory;
    return code;
}

int ANeuralNetworksExecution_setInput(ANeuralNetworksExecution *execution, int32_t index,
                                      const ANeuralNetworksOperandType *type, const void *buffer, size_t length) {
    return bind(execution, false, index, type, buffer, length);
}

int ANeuralNetworksExecution_setInputFromMemory(ANeuralNetworksExecution *execution, int32_t index,
                                                const ANeuralNetworksOperandType *type,
                                                const ANeuralNetworksMemory *memory, size_t offset, size_t length) {
    return bind_memory(execution, false, index, type, memory, offset, length);
}

int ANeuralNetworksExecution_setOutput(ANeuralNetworksExecution *execution, int32_t index,
                                       const ANeuralNetworksOperandType *type, void *buffer, size_t length) {
    return bind(execution, true, index, type, buffer, length);
}

int ANeuralNetworksExecution_setOutputFromMemory(ANeuralNetworksExecution *execution, int32_t index,
                                                 const ANeuralNetworksOperandType *type,
                                                 const ANeuralNetworksMemory *memory, size_t offset, size_t length) {
    return bind_memory(execution, true, index, type, memory, offset, length);
}

int ANeuralNetworksExecution_setTimeout(ANeuralNetworksExecution *execution, uint64_t duration) {
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    execution->timeout = duration;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksExecution_setLoopTimeout(ANeuralNetworksExecution *execution, uint64_t duration) {
    (void)duration; /* no loops here */
    return execution ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_UNEXPECTED_NULL;
}

int ANeuralNetworksExecution_setMeasureTiming(ANeuralNetworksExecution *execution, bool measure) {
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    execution->measured = measure;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksExecution_setReusable(ANeuralNetworksExecution *execution, bool reusable) {
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    execution->reusable = reusable;
    return ANEURALNETWORKS_NO_ERROR;
}

/* Whether memory of the library's own is written by two outputs, or read and written. */
static bool shares_memory(const ANeuralNetworksExecution *execution) {
    const ANeuralNetworksModel *model = execution->compilation->model;
    for (uint32_t i = 0; i < model->output_count; i++) {
        const ANeuralNetworksMemory *own = execution->outputs[i].own;
        for (uint32_t j = 0; own && j < i; j++)
            if (execution->outputs[j].own == own) return true;
        for (uint32_t j = 0; own && j < model->input_count; j++)
            if (execution->inputs[j].own == own) return true;
    }
    return false;
}

/* Makes sure that an execution is run once only, or once at a time, and has all that it needs. */
static int begin(ANeuralNetworksExecution *execution) {
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    const ANeuralNetworksModel *model = execution->compilation->model;
    for (uint32_t i = 0; i < model->input_count; i++)
        if (!execution->inputs[i].set) return ANEURALNETWORKS_BAD_DATA;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (!execution->outputs[i].set) return ANEURALNETWORKS_BAD_DATA;
    if (shares_memory(execution)) return ANEURALNETWORKS_BAD_DATA;
    pthread_mutex_lock(&execution->lock);
    bool free = !execution->running && (!execution->started || execution->reusable);
    if (free) execution->started = execution->running = true;
    pthread_mutex_unlock(&execution->lock);
    return free ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_BAD_STATE;
}

static int finish(ANeuralNetworksExecution *execution, uint64_t until) {
    int code = run(execution, until);
    pthread_mutex_lock(&execution->lock);
    execution->running = false;
    execution->done = true;
    pthread_mutex_unlock(&execution->lock);
    return code;
}

static uint64_t end_of(const ANeuralNetworksExecution *execution) {
    return execution->timeout ? now() + execution->timeout : 0;
}

int ANeuralNetworksExecution_compute(ANeuralNetworksExecution *execution) {
    int code = begin(execution);
    return code ? code : finish(execution, end_of(execution));
}

int ANeuralNetworksExecution_burstCompute(ANeuralNetworksExecution *execution, ANeuralNetworksBurst *burst) {
    if (!execution || !burst) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (execution->compilation != burst->compilation) return ANEURALNETWORKS_BAD_DATA;
    deep_burst(&burst->deep, execution);
    return ANeuralNetworksExecution_compute(execution);
}

int ANeuralNetworksBurst_create(ANeuralNetworksCompilation *compilation, ANeuralNetworksBurst **burst) {
    if (!compilation || !burst) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!compilation->finished) return ANEURALNETWORKS_BAD_STATE;
    *burst = calloc(1, sizeof **burst);
    if (!*burst) return ANEURALNETWORKS_OUT_OF_MEMORY;
    (*burst)->compilation = compilation;
    return ANEURALNETWORKS_NO_ERROR;
}

void ANeuralNetworksBurst_free(ANeuralNetworksBurst *burst) { free(burst); }

/* Events */

static ANeuralNetworksEvent *new_event(void) {
    ANeuralNetworksEvent *event = calloc(1, sizeof *event);
    if (!event) return NULL;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->ended, NULL);
    event->fence = eventfd(0, EFD_CLOEXEC);
    return event;
}

static void wait_for_descriptor(int descriptor) {
    struct pollfd waited = {descriptor, POLLIN, 0};
    while (poll(&waited, 1, -1) < 0) continue;
}

static void *work(void *given) {
    ANeuralNetworksEvent *event = given;
    for (uint32_t i = 0; i < event->wait_count; i++) wait_for_descriptor(event->waits[i]);
    uint64_t until = event->duration ? now() + event->duration : 0;
    if (event->until && (!until || event->until < until)) until = event->until;
    int code = finish(event->execution, until);
    pthread_mutex_lock(&event->lock);
    event->status = code;
    event->done = true;
    eventfd_write(event->fence, 1);
    pthread_cond_broadcast(&event->ended);
    pthread_mutex_unlock(&event->lock);
    return NULL;
}

static int start(ANeuralNetworksExecution *execution, const ANeuralNetworksEvent *const *dependencies, uint32_t count,
                 uint64_t duration, ANeuralNetworksEvent **event) {
    if (!event) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *event = NULL;
    int code = begin(execution);
    if (code) return code;
    ANeuralNetworksEvent *made = new_event();
    if (!made) return ANEURALNETWORKS_OUT_OF_MEMORY;
    made->execution = execution;
    made->duration = duration;
    made->until = end_of(execution);
    made->waits = calloc(count ? count : 1, sizeof(int));
    for (uint32_t i = 0; made->waits && i < count; i++) made->waits[made->wait_count++] = dup(dependencies[i]->fence);
    made->threaded = made->waits && !pthread_create(&made->thread, NULL, work, made);
    if (!made->threaded) {
        execution->running = false;
        ANeuralNetworksEvent_free(made);
        return ANEURALNETWORKS_OUT_OF_MEMORY;
    }
    *event = made;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksExecution_startCompute(ANeuralNetworksExecution *execution, ANeuralNetworksEvent **event) {
    return start(execution, NULL, 0, 0, event);
}

int ANeuralNetworksExecution_startComputeWithDependencies(ANeuralNetworksExecution *execution,
                                                          const ANeuralNetworksEvent *const *dependencies,
                                                          uint32_t numDependencies, uint64_t duration,
                                                          ANeuralNetworksEvent **event) {
    if (numDependencies && !dependencies) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!execution) return ANEURALNETWORKS_UNEXPECTED_NULL;
    const ANeuralNetworksModel *model = execution->compilation->model;
    for (uint32_t i = 0; i < model->output_count; i++) {
        const Binding *binding = &execution->outputs[i]; /* nobody could say what size it got */
        bool scalar = is_scalar(model->operands[model->outputs[i]].type);
        if (!scalar && !is_known(binding->rank, binding->dims)) return ANEURALNETWORKS_BAD_DATA;
    }
    return start(execution, dependencies, numDependencies, duration, event);
}

int ANeuralNetworksEvent_createFromSyncFenceFd(int sync_fence_fd, ANeuralNetworksEvent **event) {
    if (!event) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (sync_fence_fd < 0) return ANEURALNETWORKS_BAD_DATA;
    ANeuralNetworksEvent *made = new_event();
    if (!made) return ANEURALNETWORKS_OUT_OF_MEMORY;
    close(made->fence);
    made->fence = dup(sync_fence_fd);
    *event = made;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksEvent_getSyncFenceFd(const ANeuralNetworksEvent *event, int *sync_fence_fd) {
    if (!event || !sync_fence_fd) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *sync_fence_fd = dup(event->fence);
    return *sync_fence_fd < 0 ? ANEURALNETWORKS_BAD_DATA : ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksEvent_wait(ANeuralNetworksEvent *event) {
    if (!event) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!event->threaded) {
        wait_for_descriptor(event->fence);
        return ANEURALNETWORKS_NO_ERROR;
    }
    pthread_mutex_lock(&event->lock);
    while (!event->done) pthread_cond_wait(&event->ended, &event->lock);
    pthread_mutex_unlock(&event->lock);
    return event->status;
}

void ANeuralNetworksEvent_free(ANeuralNetworksEvent *event) {
    if (!event) return;
    if (event->threaded) pthread_join(event->thread, NULL);
    for (uint32_t i = 0; i < event->wait_count; i++) close(event->waits[i]);
    free(event->waits);
    close(event->fence);
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->ended);
    free(event);
}

/* What is known after the end */

int ANeuralNetworksExecution_getOutputOperandRank(ANeuralNetworksExecution *execution, int32_t index, uint32_t *rank) {
    if (!execution || !rank) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!execution->done) return ANEURALNETWORKS_BAD_STATE;
    if (index < 0 || (uint32_t)index >= execution->compilation->model->output_count) return ANEURALNETWORKS_BAD_DATA;
    *rank = execution->outputs[index].rank;
    return execution->outputs[index].short_of_room ? ANEURALNETWORKS_OUTPUT_INSUFFICIENT_SIZE
                                                   : ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksExecution_getOutputOperandDimensions(ANeuralNetworksExecution *execution, int32_t index,
                                                        uint32_t *dimensions) {
    uint32_t rank;
    if (!dimensions) return ANEURALNETWORKS_UNEXPECTED_NULL;
    int code = ANeuralNetworksExecution_getOutputOperandRank(execution, index, &rank);
    if (code && code != ANEURALNETWORKS_OUTPUT_INSUFFICIENT_SIZE) return code;
    if (!rank) return ANEURALNETWORKS_BAD_DATA; /* a scalar has none */
    memcpy(dimensions, execution->outputs[index].dims, rank * sizeof *dimensions);
    return code;
}

int ANeuralNetworksExecution_getDuration(const ANeuralNetworksExecution *execution, int32_t durationCode,
                                         uint64_t *duration) {
    if (!execution || !duration) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!execution->done) return ANEURALNETWORKS_BAD_STATE;
    if (durationCode < 0 || durationCode > ANEURALNETWORKS_FENCED_DURATION_IN_DRIVER) return ANEURALNETWORKS_BAD_DATA;
    *duration = execution->measured ? execution->took : UINT64_MAX;
    return ANEURALNETWORKS_NO_ERROR;
}
