/* Memory: of a descriptor, or the library's own for certain inputs and outputs. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "native.h"

struct ANeuralNetworksMemoryDesc {
    const Operand *operand; /* that of all roles */
    Role *roles;
    uint32_t role_count;
    uint32_t rank, dims[MOST_DIMENSIONS];
    bool finished;
};

int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int fd, size_t offset,
                                       ANeuralNetworksMemory **memory) {
    struct stat about;
    if (!memory) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (fd < 0 || !size || fstat(fd, &about)) return ANEURALNETWORKS_BAD_DATA;
    if (S_ISREG(about.st_mode) && (uint64_t)about.st_size < offset + size) return ANEURALNETWORKS_BAD_DATA;
    size_t skip = offset % (size_t)sysconf(_SC_PAGESIZE);
    void *mapping = mmap(NULL, size + skip, protect, MAP_SHARED, fd, (off_t)(offset - skip));
    if (mapping == MAP_FAILED) return ANEURALNETWORKS_UNMAPPABLE;
    ANeuralNetworksMemory *made = calloc(1, sizeof *made);
    if (!made) return ANEURALNETWORKS_OUT_OF_MEMORY;
    made->data = (char *)mapping + skip;
    made->size = size;
    made->mapping = mapping;
    made->mapped = size + skip;
    made->writable = protect & PROT_WRITE;
    *memory = made;
    return ANEURALNETWORKS_NO_ERROR;
}

void ANeuralNetworksMemory_free(ANeuralNetworksMemory *memory) {
    if (!memory) return;
    deep_memory_free(memory);
    if (memory->mapping) munmap(memory->mapping, memory->mapped);
    if (memory->own) free(memory->data);
    free(memory->roles);
    free(memory);
}

int ANeuralNetworksMemory_copy(const ANeuralNetworksMemory *src, const ANeuralNetworksMemory *dst) {
    if (!src || !dst) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (src->own && !src->filled) return ANEURALNETWORKS_OP_FAILED;
    if (dst->own) ((ANeuralNetworksMemory *)dst)->filled = false; /* whatever comes of it */
    if (src->size != dst->size || !dst->writable) return ANEURALNETWORKS_BAD_DATA;
    memcpy(dst->data, src->data, src->size);
    ((ANeuralNetworksMemory *)dst)->filled = true;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksMemoryDesc_create(ANeuralNetworksMemoryDesc **desc) {
    if (!desc) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *desc = calloc(1, sizeof **desc);
    return *desc ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_OUT_OF_MEMORY;
}

void ANeuralNetworksMemoryDesc_free(ANeuralNetworksMemoryDesc *desc) {
    if (desc) free(desc->roles);
    free(desc);
}

static bool take_dimensions(ANeuralNetworksMemoryDesc *desc, uint32_t rank, const uint32_t *dims) {
    if (!rank) return true;
    if (rank > MOST_DIMENSIONS || (desc->rank && desc->rank != rank)) return false;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t known = desc->rank ? desc->dims[i] : 0;
        if (known && dims[i] && known != dims[i]) return false;
        desc->dims[i] = known ? known : dims[i];
    }
    desc->rank = rank;
    return true;
}

static int add_role(ANeuralNetworksMemoryDesc *desc, const ANeuralNetworksCompilation *compilation, uint32_t index,
                    float frequency, bool output) {
    if (!desc || !compilation) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (desc->finished || !compilation->finished) return ANEURALNETWORKS_BAD_STATE;
    const ANeuralNetworksModel *model = compilation->model;
    if (index >= (output ? model->output_count : model->input_count)) return ANEURALNETWORKS_BAD_DATA;
    if (!(frequency > 0 && frequency <= 1)) return ANEURALNETWORKS_BAD_DATA;
    for (uint32_t i = 0; i < desc->role_count; i++) {
        const Role *role = &desc->roles[i];
        if (role->compilation == compilation && role->output == output && role->index == index)
            return ANEURALNETWORKS_BAD_DATA; /* given twice */
    }
    const Operand *operand = &model->operands[(output ? model->outputs : model->inputs)[index]];
    const Operand *other = desc->operand;
    bool alike = !other || (other->type == operand->type && other->scale == operand->scale &&
                            other->zero_point == operand->zero_point);
    if (!alike || !take_dimensions(desc, operand->rank, operand->dims)) return ANEURALNETWORKS_BAD_DATA;
    Role *grown = realloc(desc->roles, (desc->role_count + 1) * sizeof *grown);
    if (!grown) return ANEURALNETWORKS_OUT_OF_MEMORY;
    desc->roles = grown;
    desc->roles[desc->role_count++] = (Role){compilation, output, index};
    desc->operand = operand;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksMemoryDesc_addInputRole(ANeuralNetworksMemoryDesc *desc,
                                           const ANeuralNetworksCompilation *compilation, uint32_t index,
                                           float frequency) {
    return add_role(desc, compilation, index, frequency, false);
}

int ANeuralNetworksMemoryDesc_addOutputRole(ANeuralNetworksMemoryDesc *desc,
                                            const ANeuralNetworksCompilation *compilation, uint32_t index,
                                            float frequency) {
    return add_role(desc, compilation, index, frequency, true);
}

int ANeuralNetworksMemoryDesc_setDimensions(ANeuralNetworksMemoryDesc *desc, uint32_t rank,
                                            const uint32_t *dimensions) {
    if (!desc || (rank && !dimensions)) return ANEURALNETWORKS_UNEXPECTED_NULL;
    return take_dimensions(desc, rank, dimensions) ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_BAD_DATA;
}

int ANeuralNetworksMemoryDesc_finish(ANeuralNetworksMemoryDesc *desc) {
    if (!desc) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!desc->operand || (is_scalar(desc->operand->type) && desc->rank)) return ANEURALNETWORKS_BAD_DATA;
    desc->finished = true;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksMemory_createFromDesc(const ANeuralNetworksMemoryDesc *desc, ANeuralNetworksMemory **memory) {
    if (!desc || !memory) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!desc->finished) return ANEURALNETWORKS_BAD_STATE;
    bool scalar = is_scalar(desc->operand->type);
    if (!scalar && !is_known(desc->rank, desc->dims)) return ANEURALNETWORKS_OP_FAILED; /* of unknown size */
    ANeuralNetworksMemory *made = calloc(1, sizeof *made);
    if (!made) return ANEURALNETWORKS_OUT_OF_MEMORY;
    made->own = made->writable = true;
    made->size = size_of_type(desc->operand->type) * count_of(desc->rank, desc->dims);
    made->data = calloc(made->size ? made->size : 1, 1);
    made->roles = calloc(desc->role_count, sizeof *made->roles);
    if (made->roles) memcpy(made->roles, desc->roles, desc->role_count * sizeof *made->roles);
    made->role_count = made->roles ? desc->role_count : 0;
    deep_memory_make(made->roles, made->role_count);
    made->rank = desc->rank;
    memcpy(made->dims, desc->dims, sizeof made->dims);
    *memory = made;
    return made->data ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_OUT_OF_MEMORY;
}
