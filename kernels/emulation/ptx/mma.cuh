#pragma once
#include "base/element.cuh"
namespace warptile {
constexpr int FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, FRAGMENT_DEPTH = 16;
template<class E> float half_of(unsigned w,int h){E x[2];memcpy(x,&w,4);return widen(x[h]);}
template<class E> void mma(float(&c)[4],const unsigned(&a)[4],unsigned b0,unsigned b1){
  for(int i=0;i<4;i++)EX.w[LANE][i]=a[i]; EX.w[LANE][4]=b0;EX.w[LANE][5]=b1; WB();
  for(int j=0;j<4;j++){int row=LANE/4+8*(j/2),col=LANE%4*2+j%2;float s=c[j];
    for(int k=0;k<16;k++){float x=half_of<E>(EX.w[(row%8)*4+(k%8)/2][row/8+2*(k/8)],k%2);float y=half_of<E>(EX.w[col*4+(k%8)/2][4+k/8],k%2);s+=x*y;} c[j]=s;}
  WB();}
inline void lm(unsigned(&w)[4],unsigned a,bool t){EX.w[LANE][0]=a;WB();
  for(int m=0;m<4;m++){uint16_t e[2];for(int i=0;i<2;i++){int r=t?LANE%4*2+i:LANE/4,c=t?LANE/4:LANE%4*2+i;memcpy(&e[i],shared+EX.w[8*m+r][0]+2*c,2);} memcpy(&w[m],e,4);} WB();}
inline void load_matrices(unsigned(&w)[4],unsigned a){lm(w,a,false);} inline void load_matrices_transposed(unsigned(&w)[4],unsigned a){lm(w,a,true);}
inline uint2 load_two_words(unsigned a){uint2 two;memcpy(&two,shared+a,sizeof two);return two;}
inline void store_word(unsigned a,unsigned word){memcpy(shared+a,&word,sizeof word);}
inline void store_two(unsigned a,float2 two){memcpy(shared+a,&two,sizeof two);}
}
