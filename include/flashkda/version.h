/* The version, the one place it stands in. CMake and the Python build read it from here. */
#ifndef FLASHKDA_VERSION_H_
#define FLASHKDA_VERSION_H_

#define FLASHKDA_VERSION_MAJOR 0
#define FLASHKDA_VERSION_MINOR 1
#define FLASHKDA_VERSION_PATCH 0
#define FLASHKDA_VERSION_STRING "0.1.0"

#endif /* FLASHKDA_VERSION_H_ */
