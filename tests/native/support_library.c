/* The library in the form of a support library: one exported function that gives a table of all others.
 *
 * The table's order is the interface's own; it goes on behind what is here with functions for diagnostics.
 */
#include "native.h"

#define NAME(name) (void *)ANeuralNetworks##name
#define NONE NULL

typedef struct {
    int64_t level;
    void *functions[71];
    void *diagnostics[34];
} Table;

static const Table TABLE = {
    ANEURALNETWORKS_FEATURE_LEVEL_8,
    {
        NAME(Burst_create),
        NAME(Burst_free),
        NAME(Compilation_createForDevices),
        NAME(Compilation_finish),
        NAME(Compilation_free),
        NONE, /* preferred alignment and padding of inputs and outputs */
        NONE,
        NONE,
        NONE,
        NAME(Compilation_setCaching),
        NAME(Compilation_setPreference),
        NAME(Compilation_setPriority),
        NAME(Compilation_setTimeout),
        NONE, /* extensions */
        NAME(Device_getFeatureLevel),
        NAME(Device_getName),
        NAME(Device_getType),
        NAME(Device_getVersion),
        NONE, /* Device_wait */
        NAME(Event_createFromSyncFenceFd),
        NAME(Event_free),
        NAME(Event_getSyncFenceFd),
        NAME(Event_wait),
        NAME(Execution_burstCompute),
        NAME(Execution_compute),
        NAME(Execution_create),
        NONE, /* padding of inputs and outputs */
        NAME(Execution_free),
        NAME(Execution_getDuration),
        NAME(Execution_getOutputOperandDimensions),
        NAME(Execution_getOutputOperandRank),
        NAME(Execution_setInput),
        NAME(Execution_setInputFromMemory),
        NAME(Execution_setLoopTimeout),
        NAME(Execution_setMeasureTiming),
        NAME(Execution_setOutput),
        NAME(Execution_setOutputFromMemory),
        NAME(Execution_setReusable),
        NAME(Execution_setTimeout),
        NAME(Execution_startComputeWithDependencies),
        NAME(MemoryDesc_addInputRole),
        NAME(MemoryDesc_addOutputRole),
        NAME(MemoryDesc_create),
        NAME(MemoryDesc_finish),
        NAME(MemoryDesc_free),
        NAME(MemoryDesc_setDimensions),
        NAME(Memory_copy),
        NONE, /* hardware buffers */
        NAME(Memory_createFromDesc),
        NAME(Memory_createFromFd),
        NAME(Memory_free),
        NAME(Model_addOperand),
        NAME(Model_addOperation),
        NAME(Model_create),
        NAME(Model_finish),
        NAME(Model_free),
        NONE, /* extensions */
        NONE,
        NAME(Model_getSupportedOperationsForDevices),
        NAME(Model_identifyInputsAndOutputs),
        NAME(Model_relaxComputationFloat32toFloat16),
        NONE, /* extensions */
        NAME(Model_setOperandSymmPerChannelQuantParams),
        NAME(Model_setOperandValue),
        NAME(Model_setOperandValueFromMemory),
        NAME(Model_setOperandValueFromModel),
        NAME(_getDefaultLoopTimeout),
        NAME(_getDevice),
        NAME(_getDeviceCount),
        NAME(_getMaximumLoopTimeout),
        NONE, /* level of the runtime */
    },
    {NONE},
};

__attribute__((visibility("default"))) const void *ANeuralNetworks_getSLDriverImpl(void) { return &TABLE; }
