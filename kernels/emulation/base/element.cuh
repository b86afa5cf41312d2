#pragma once
typedef _Float16 __half; struct __nv_bfloat16 { uint16_t bits; };
namespace warptile {
constexpr int CHUNK_BYTES = 16; template <class Element> constexpr int CHUNK = CHUNK_BYTES / (int)sizeof(Element);
template<class E> unsigned narrow2(float a,float b);
template<> inline unsigned narrow2<__half>(float a,float b){__half h[2]={(__half)a,(__half)b};unsigned u;memcpy(&u,h,4);return u;}
}
