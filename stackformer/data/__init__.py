"""stackformer.data"""
