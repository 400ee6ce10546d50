/* The devices of the library: the same operations at the newest level and at an old one. */
#include "native.h"

static struct ANeuralNetworksDevice DEVICES[] = {
    {"nncts-native", ANEURALNETWORKS_FEATURE_LEVEL_8},
    {"nncts-native-old", ANEURALNETWORKS_FEATURE_LEVEL_4},
};
enum { DEVICE_COUNT = sizeof DEVICES / sizeof DEVICES[0] };

int ANeuralNetworks_getDeviceCount(uint32_t *numDevices) {
    if (!numDevices) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *numDevices = DEVICE_COUNT;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworks_getDevice(uint32_t devIndex, ANeuralNetworksDevice **device) {
    if (!device) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (devIndex >= DEVICE_COUNT) return ANEURALNETWORKS_BAD_DATA;
    *device = &DEVICES[devIndex];
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksDevice_getName(const ANeuralNetworksDevice *device, const char **name) {
    if (!device || !name) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *name = device->name;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksDevice_getType(const ANeuralNetworksDevice *device, int32_t *type) {
    if (!device || !type) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *type = ANEURALNETWORKS_DEVICE_CPU;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksDevice_getVersion(const ANeuralNetworksDevice *device, const char **version) {
    if (!device || !version) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *version = "1.0";
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksDevice_getFeatureLevel(const ANeuralNetworksDevice *device, int64_t *featureLevel) {
    if (!device || !featureLevel) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *featureLevel = device->level;
    return ANEURALNETWORKS_NO_ERROR;
}

uint64_t ANeuralNetworks_getDefaultLoopTimeout(void) { return 2000000000u; }
uint64_t ANeuralNetworks_getMaximumLoopTimeout(void) { return 15000000000u; }
