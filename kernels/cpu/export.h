// How a function of the C interface is made visible; everything else is hidden.
#pragma once

#if defined(_WIN32)
#define SLIPSTREAM_EXPORT extern "C" __declspec(dllexport)
#else
#define SLIPSTREAM_EXPORT extern "C" __attribute__((visibility("default")))
#endif
