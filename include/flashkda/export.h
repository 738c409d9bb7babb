/* FLASHKDA_API marks what the library exports. Define FLASHKDA_STATIC when linking the static library on Windows. */
#ifndef FLASHKDA_EXPORT_H_
#define FLASHKDA_EXPORT_H_

#if defined(_WIN32) && !defined(FLASHKDA_STATIC)
#ifdef FLASHKDA_BUILDING
#define FLASHKDA_API __declspec(dllexport)
#else
#define FLASHKDA_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define FLASHKDA_API __attribute__((visibility("default")))
#else
#define FLASHKDA_API
#endif

#endif /* FLASHKDA_EXPORT_H_ */
